"""What one rank tells the others of: far slower steps, a pace of its own, memory that grows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dsprof.trace.rolling.alarms import Alarms
from dsprof.trace.schema import OpTotals, StepTotals

MS = 1_000_000
STEPS = 200


def raised(
    duration: Callable[[int], int] = lambda _: 100,
    blocked: Callable[[int], int] = lambda _: 40,
    memory: Callable[[int], int] = lambda _: 1000,
) -> list[tuple[int, str, str]]:
    """Judge steps of so many ms, of which some are blocked; return the alarms."""
    alarms, found = Alarms(), list[tuple[int, str, str]]()
    for step in range(STEPS):
        ops = {"all_reduce": OpTotals(1, 1, blocked(step) * MS)}
        alarms.judge(
            StepTotals(step, 0, duration(step) * MS, {}, 0, ops, memory(step), -1), 100 * MS
        )
        found += [(one.step, one.kind, one.cause) for one in alarms.take()]
    return found


def test_a_step_far_slower_than_usual() -> None:
    slow = {90: 340, 91: 250, 92: 123_400}
    assert raised(lambda step: slow.get(step, 100)) == [
        (90, "slow", "took 3.40 times the usual time"),
        (92, "slow", "took 1,234 times the usual time"),
    ]


def test_a_rank_that_others_wait_for_since_some_step() -> None:
    found = raised(blocked=lambda step: 40 if step < 96 else 10)
    assert found == [(111, "behind", "own time rose to 1.50 times its minimum")]


def test_a_rank_that_waits_for_others_tells_nothing() -> None:
    assert not raised(
        duration=lambda step: 100 if step < 96 else 150,
        blocked=lambda step: 40 if step < 96 else 90,
    )


@pytest.mark.parametrize("start", [0, 64])
def test_memory_that_grows(start: int) -> None:
    found = raised(memory=lambda step: 1000 + 5 * max(step - start, 0))
    assert [kind for _, kind, _ in found] == ["memory"] * len(found)
    assert found[0][2] == "host memory grew to 1.10 times what it was"
    assert 1 <= len(found) <= 6
    assert found[0][0] >= 64


def test_unknown_memory_does_not_grow() -> None:
    assert not raised(memory=lambda step: -1)


def test_the_first_alarm_of_each_kind_waits() -> None:
    """A rank looks once a second: a step later than one that grew may be slow."""
    alarms = Alarms()
    for step in range(STEPS):
        ms = 400 if step % 8 == 7 else 100
        sums = StepTotals(step, 0, ms * MS, {}, 0, {}, 1000 if step < 100 else 1500, -1)
        alarms.judge(sums, 100 * MS)
    assert [(one.step, one.kind) for one in alarms.take()] == [(7, "slow"), (100, "memory")]
    assert alarms.take() == []
