"""Sums over time: what a killed process had not summed up yet is summed up by the reader."""

from __future__ import annotations

from copy import deepcopy

import pytest

from dsprof.trace.rolling.rollups import RollUps, complete, short
from dsprof.trace.schema import OpTotals, RollUp, StepTotals

SECOND_NS = 10**9
STARTED_S = 1_700_000_000


def of_step(number: int) -> StepTotals:
    """A step of about a second."""
    end_ns = number * SECOND_NS + number % 7 * 10_000_000
    ops = {"all_reduce": OpTotals(2 + number % 3, 100, 10)}
    return StepTotals(number, end_ns - SECOND_NS, end_ns, {"forward": number}, 3, ops, number)


def recorded(steps: int) -> tuple[dict[tuple[int, int], RollUp], dict[tuple[int, int], RollUp]]:
    """The spans that a killed process has written, and those of one that ended."""
    rollups, written = RollUps(), []
    for number in range(steps):
        one = of_step(number)
        written += rollups.add(one, STARTED_S + one.end_ns // SECOND_NS)
    killed = {one.span: one for one in written}
    return killed, killed | {one.span: one for one in rollups.end()}


@pytest.mark.parametrize("steps", [1, 5, 11, 299, 301, 4000, 8123])
def test_a_killed_rank_has_the_spans_that_were_not_over(steps: int) -> None:
    killed, whole = recorded(steps)
    newest = {number: of_step(number) for number in range(max(steps - 320, 0), steps)}
    found = complete(killed, newest, STARTED_S * SECOND_NS)
    assert {at: short(one) if at[0] == 10 else one for at, one in found.items()} == whole


def test_without_sums_of_steps_phases_are_missing_and_nothing_else() -> None:
    killed, whole = recorded(4000)
    newest = {number: of_step(number) for number in range(3990, 4000)}
    found = complete(killed, newest, STARTED_S * SECOND_NS)
    assert {at: short(one) for at, one in found.items()} == {
        at: short(one) for at, one in whole.items()
    }


@pytest.mark.parametrize("written_at", [3599, 3650, 3671])
def test_spans_are_completed_from_what_was_written_before_they_were_over(written_at: int) -> None:
    rollups, killed = RollUps(), dict[tuple[int, int], RollUp]()
    for number in range(3700):
        one = of_step(number)
        over = rollups.add(one, STARTED_S + one.end_ns // SECOND_NS)
        killed |= {one.span: one for one in over}
        if number == written_at:
            killed |= {one.span: deepcopy(one) for one in rollups.open()}
    whole = killed | {one.span: one for one in rollups.end()}
    newest = {number: of_step(number) for number in range(written_at + 1, 3700)}
    found = complete(killed, newest, STARTED_S * SECOND_NS)
    assert all(
        short(found[at]) == short(one) if at[0] == 10 else found[at] == one
        for at, one in whole.items()
    )
    assert found.keys() == whole.keys()


def test_a_damaged_span_does_not_fill_memory() -> None:
    damaged = RollUp(0, 10, 0, steps=1 << 60)
    assert complete({damaged.span: damaged}, {}, 0)[3600, 0].steps == 1 << 60
