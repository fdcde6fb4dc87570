"""The cost of hiding a collective behind compute: first separately, then both at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

from dsprof.analysis.baseline import Hiding
from dsprof.bench.clock import Clock, clock_of
from dsprof.bench.groups import Team
from dsprof.bench.primitives import ELEMENT_BYTES
from dsprof.bench.products import WIDTH, square_product

_REPEATS = 31
_OF_MEDIAN = (0.5 - 0.98 / _REPEATS**0.5, 0.5 + 0.98 / _REPEATS**0.5)
"""Between these quantiles of independent values their true median lies, 19 times out of 20."""
_WIDTHS = {"cpu": 256}
_MOST_PRODUCTS = 10_000


def measure_hiding(team: Team, device: torch.device, nbytes: int) -> Hiding:
    """Time an all-reduce and products of matrices that take as long, apart and together.

    Every repetition takes the three one after another, so that what slows the machine for a while
    slows all of them. The bounds are those of the median of c in both = longer + c x shorter.
    """
    clock = clock_of(device)
    data = torch.zeros(max(1, nbytes // ELEMENT_BYTES), device=device)

    def collective() -> None:
        dist.all_reduce(data, group=team.group)

    compute = _compute(team, device, clock, collective)

    def both() -> None:
        work = dist.all_reduce(data, group=team.group, async_op=True)
        compute()
        work.wait()

    times = np.array(
        [[_together(c, team, clock) for c in (compute, collective, both)] for _ in range(_REPEATS)],
        np.float64,
    )
    alone = times[:, :2]
    factors = np.maximum(times[:, 2] - alone.max(1), 0) / np.maximum(alone.min(1), 1)
    low, high = np.quantile(factors, _OF_MEDIAN)
    compute_ns, collective_ns, both_ns = np.median(times, 0)
    return Hiding(
        op="all_reduce",
        nbytes=data.numel() * ELEMENT_BYTES,
        compute_ns=float(compute_ns),
        collective_ns=float(collective_ns),
        both_ns=float(both_ns),
        low=float(low),
        high=float(high),
    )


def _together(call: Callable[[], object], team: Team, clock: Clock) -> int:
    """Return how long the slowest rank takes when all begin together."""
    team.barrier()
    return max(team.told(clock(call)))


def _compute(
    team: Team, device: torch.device, clock: Clock, collective: Callable[[], None]
) -> Callable[[], None]:
    """Return products of matrices that take about as long as a collective."""
    product = square_product(torch.float32, _WIDTHS.get(device.type, WIDTH), device)
    one, whole = (
        float(np.median([_together(call, team, clock) for _ in range(5)]))
        for call in (product, collective)
    )
    count = min(max(1, round(whole / max(one, 1))), _MOST_PRODUCTS)

    def compute() -> None:
        for _ in range(count):
            product()

    return compute
