"""Sums over time: what a killed process had not summed up yet is summed up by the reader."""

from __future__ import annotations

from copy import deepcopy

import msgspec
import numpy as np
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


def served(seconds: int) -> tuple[dict[tuple[int, int], RollUp], dict[tuple[int, int], RollUp]]:
    """The same of a process without steps that is looked at each second."""
    rollups, written = RollUps(), dict[tuple[int, int], RollUp]()
    for number in range(1, seconds + 1):
        sums = msgspec.structs.replace(of_step(number), step=-1)
        at = SECOND_NS, number * SECOND_NS, STARTED_S + number
        written |= {one.span: deepcopy(one) for one in rollups.add_time(sums, *at)}
        if number == 3650:
            written |= {one.span: deepcopy(one) for one in rollups.open()}
    return written, written | {one.span: one for one in rollups.end()}


@pytest.mark.parametrize("seconds", [5, 299, 4000, 8123])
def test_without_steps_spans_have_what_was_recorded_in_them(seconds: int) -> None:
    _, whole = served(seconds)
    for length_s in (10, 300, 3600):
        spans = [one for one in whole.values() if one.length_s == length_s]
        assert sum(one.total_ns for one in spans) == seconds * SECOND_NS
        assert sum(one.ops["all_reduce"].nbytes for one in spans) == 100 * seconds
        assert {(one.steps, one.first_step, one.slowest_step) for one in spans} == {(0, 0, -1)}


@pytest.mark.parametrize("seconds", [3649, 3700, 8123])
def test_a_killed_rank_without_steps_lacks_only_the_span_of_10_s_that_was_not_over(
    seconds: int,
) -> None:
    killed, whole = served(seconds)
    found = complete(killed, {}, STARTED_S * SECOND_NS)
    lost = max(span for span in whole if span[0] == 10)
    for length_s in (300, 3600):
        known, every = (
            [
                (one.total_ns, one.ops["all_reduce"].calls)
                for at, one in spans.items()
                if at[0] == length_s
            ]
            for spans in (found, whole)
        )
        missing = np.sum(every, axis=0) - np.sum(known, axis=0)
        assert [*missing] == [whole[lost].total_ns, whole[lost].ops["all_reduce"].calls]


def test_sums_before_the_first_step_are_in_no_span_of_steps() -> None:
    rollups, spans = RollUps(), list[RollUp]()
    sums = msgspec.structs.replace(of_step(1), step=-1)
    spans += rollups.add_time(sums, 25 * SECOND_NS, 25 * SECOND_NS, STARTED_S + 25)
    spans += rollups.add(of_step(30), STARTED_S + 30)
    spans += rollups.end()
    assert [(one.length_s, one.steps) for one in spans] == [(10, 1), (300, 1), (3600, 1)]
    assert {one.total_ns for one in spans} == {of_step(30).end_ns - of_step(30).start_ns}
