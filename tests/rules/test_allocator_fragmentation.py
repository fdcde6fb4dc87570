from __future__ import annotations

import pytest

from dsprof.rules.allocator_fragmentation import RESERVED, RETRIES, RULE, STUCK
from dsprof.rules.rule import Severity, Status
from dsprof.trace.format import MemoryArgs
from tests.factories.trace import header, rank_trace, said

GIB = 1 << 30


def on_device(*samples: dict[str, int] | None, rank: int = 0):
    memory = [
        MemoryArgs("step", time, step=time, device=counters)
        for time, counters in enumerate(samples)
    ]
    return rank_trace(rank, head=header(rank, device="cuda", backend="nccl"), memory=memory)


def counters(stuck: float, reserved: float = 20, retries: int = 0) -> dict[str, int]:
    return {STUCK: int(stuck * GIB), RESERVED: int(reserved * GIB), RETRIES: retries}


def test_much_memory_in_fragments_fails_and_names_the_rank():
    finding = said(RULE, on_device(counters(0.1)), on_device(counters(6), rank=1))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert finding.ranks == (1,)
    assert "6.00 of 20.00 GiB" in finding.summary
    assert "expandable_segments" in finding.action


def test_retries_after_the_first_step_are_severe():
    finding = said(RULE, on_device(counters(1, retries=2), counters(1, retries=5)))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert finding.title == "Allocations on the device had to be tried again"
    assert "up to 3 times" in finding.summary


@pytest.mark.parametrize(
    "samples",
    [
        (counters(1.1),),
        (counters(0.9, reserved=2),),
        (counters(0, retries=9), counters(0, retries=9)),
        (counters(9), counters(0.1)),
    ],
    ids=["small share", "few bytes", "retries at start", "recovered"],
)
def test_a_healthy_allocator_passes(samples):
    assert said(RULE, on_device(*samples)).status is Status.PASS


def test_a_cpu_run_has_no_device_allocator():
    assert said(RULE, rank_trace()).status is Status.NOT_APPLICABLE


@pytest.mark.parametrize("samples", [(), (None,), ({RESERVED: GIB},), ({STUCK: GIB},)])
def test_missing_counters_are_unknown(samples):
    assert said(RULE, on_device(*samples)).status is Status.UNKNOWN
