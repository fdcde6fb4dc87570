"""Findings are the same in whatever order the files of the ranks are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from dsprof.environment import EnvSnapshot
from dsprof.rules import RULES
from dsprof.rules.runner import judge
from dsprof.trace.device_counters import DEVICE_TOTAL, PEAK_RESERVED, RESERVED, RETRIES, STUCK
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Trailer
from tests.factories import device, machines
from tests.factories.memory import GIB, on_device
from tests.factories.trace import alive, engine, hanging, header, summary, zero_rank

RANKS = 4


def unlike(number: int) -> RankTrace:
    """Each rank has its own host, variables and configuration, and waits for another time."""
    machine = machines.h100_infiniband()
    machine["machine"] = machine["machine"] | {"nvidia_driver": f"53{number}.1"}
    variables = {
        "NCCL_ALGO": ("Ring", "Tree")[number % 2],
        "NCCL_DEBUG": "INFO",
        f"MY_{number}": "1",
    }
    environment = EnvSnapshot(**machine, variables=variables)
    head = header(number, RANKS, host=f"node-{number % 2}", backend="nccl")
    config = engine(3, reduce_bucket_size=10**6 + number)
    return zero_rank(
        number, RANKS, comm_ms=40 - 8 * number, head=head, engine=config, environment=environment
    )


def full(number: int) -> RankTrace:
    """Devices of which each is fuller than that of the rank before."""
    used = (30 + 10 * number) * GIB
    counters = {RESERVED: used, PEAK_RESERVED: used, DEVICE_TOTAL: 80 * GIB}
    steps = [counters | {RETRIES: 3 * n, STUCK: 8 * GIB} for n in range(3)]
    return on_device(*steps, rank=number, world_size=RANKS)


def stuck(number: int) -> RankTrace:
    """Ranks 0 and 3 wait for 1 and 2."""
    waits = [hanging("all_reduce", 1000, seq=9, step=5)] if number in (0, 3) else []
    trailer = Trailer(reason="interrupted")
    extra: dict[str, Any] = {"trailer": trailer, "memory": [alive(42_000)]}
    return zero_rank(number, RANKS, extra=lambda step, _: waits if step == 5 else [], **extra)


def kernels(number: int) -> RankTrace:
    return device.busy(number, comm=10 + 5 * number, world_size=RANKS)


def test_of_two_values_as_common_the_one_of_the_lowest_rank_is_the_usual() -> None:
    findings = judge(summary(*(unlike(number) for number in range(RANKS))), RULES)
    [ranks] = [one.ranks for one in findings if one.summary.startswith("NCCL_ALGO differs")]
    assert ranks == (1, 3)


@pytest.mark.parametrize("rank", [unlike, full, stuck, kernels, zero_rank])
def test_findings_do_not_depend_on_the_order_of_ranks(rank: Callable[[int], RankTrace]) -> None:
    traces = [rank(number) for number in range(RANKS)]
    told = [judge(summary(*order), RULES) for order in (traces, traces[::-1])]
    one, other = (sorted(map(msgspec.json.encode, findings)) for findings in told)
    assert one == other
