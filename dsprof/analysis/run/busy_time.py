"""What a rank spends more time in than the others, before it comes late to a collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsprof.analysis.aggregates.steps import RankSteps, Steps


@dataclass(frozen=True, slots=True)
class BusyTime:
    """Mean of a measured step of one rank in ns, without waits; None: not measurable."""

    compute_ns: float | None  # in forward, backward and step
    copies_ns: float | None
    before_ns: float | None  # from the end of the step before to the first forward
    outside_ns: float | None  # outside all phases, what is before left out
    idle_ns: float | None = None  # of its device, from kernels; phases are then unknown


def busy_times(steps: Steps, before_ns: Mapping[int, int | None]) -> dict[int, BusyTime]:
    """Split the time of each rank; `before_ns` are sums over its measured steps."""
    return {
        rank: _own_time(row, steps.measured, before_ns.get(rank))
        for rank, row in steps.ranks.items()
    }


def _own_time(row: RankSteps, measured: Sequence[int], before_ns: int | None) -> BusyTime:
    chosen = np.isin(row.number, measured)
    count = max(int(np.count_nonzero(chosen)), 1)
    whole = row.profiled is None or bool(row.profiled[chosen].all())
    compute, copies, exposed, idle = (
        None if column is None or not is_known else int(column[chosen].sum()) / count
        for column, is_known in (
            (row.compute_ns, whole),
            (row.copies_ns, whole),
            (row.exposed_ns, True),
            (row.idle_ns, whole),
        )
    )
    if compute is None or exposed is None:
        return BusyTime(None, copies, None, None)
    if idle is not None:
        return BusyTime(compute, copies, None, None, idle)
    other = int(row.total_ns[chosen].sum()) / count - compute - exposed - (copies or 0.0)
    before = min(before_ns / count, other) if before_ns is not None else 0.0
    return BusyTime(compute, copies, before, other - before)


def excess(times: Mapping[int, BusyTime], rank: int, others: Sequence[int]) -> dict[str, float]:
    """Return by how much each part of a rank is above the median of the others, in ns a step."""
    found = {}
    for part in ("compute_ns", "copies_ns", "before_ns", "outside_ns", "idle_ns"):
        mine = getattr(times[rank], part)
        known = [value for one in others if (value := getattr(times[one], part)) is not None]
        if mine is not None and known:
            found[part] = mine - float(np.median(known))
    return found
