from __future__ import annotations

from dataclasses import replace

import numpy as np

from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.step_columns import StepColumns, step_columns
from tests.factories.trace import MS, summary, zero_rank


def columns(*first: int) -> StepColumns:
    """20 equal steps, of which each rank has recorded those from `first` on."""
    traces = [zero_rank(rank, steps=20) for rank in range(len(first))]
    for trace, number in zip(traces, first, strict=True):
        trace.steps = [step for step in trace.steps if step.step >= number]
    steps = summary(*traces)[Steps]
    return step_columns(steps, steps.throughout.even, ())


def test_own_time_is_that_without_waits():
    found = columns(0, 0)
    assert found.number.tolist() == list(range(2, 20))
    assert {rank: own.tolist() for rank, own in found.own_ns()} == dict.fromkeys(
        (0, 1), [95 * MS] * 18
    )


def test_ranks_that_begin_later_than_most_are_left_out():
    found = columns(0, 12)
    assert (len(found.number), [*dict(found.own_ns())], found.left_out) == (18, [0], (1,))
    assert found.ranks == "all ranks but rank 1"


def test_ranks_without_a_trace_are_left_out_too():
    steps = summary(zero_rank(0, 8, steps=20), zero_rank(3, 8, steps=20))[Steps]
    found = step_columns(steps, steps.throughout.even, (1, 2, 4, 5, 6, 7))
    assert (found.left_out, found.ranks) == ((1, 2, 4, 5, 6, 7), "ranks 0, 3")


def test_steps_are_those_that_each_rank_has():
    found = columns(0, 1, 0)
    assert found.number.tolist() == list(range(3, 20))
    assert (found.left_out, found.ranks) == ((), "all ranks")


def test_a_rank_whose_own_time_grows_is_behind_unless_all_ranks_are():
    found = columns(0, 0)
    after = found.number >= 12
    own = dict(found.own_ns())
    found = replace(found, own_ns=own.items)
    own[1][after] += 5 * MS
    assert found.ranks_behind(~after, after, 5 * MS) == (1,)
    assert found.ranks_behind(~after, after, 5 * MS + 1) == ()
    own[0][after] += 5 * MS
    assert found.ranks_behind(~after, after, 5 * MS) == ()


def test_a_rank_that_is_longer_in_half_of_the_steps_is_not_behind():
    found = columns(0, 0)
    after = found.number >= 12
    own = dict(found.own_ns())
    found = replace(found, own_ns=own.items)
    own[1][found.number >= 15] += 5 * MS
    assert found.ranks_behind(~after, found.number >= 14, 5 * MS) == (1,)
    assert found.ranks_behind(~after, after, 5 * MS) == ()


def test_ranks_behind_in_several_stretches_are_found_in_one_reading():
    found = columns(0, 0)
    own, read = dict(found.own_ns()), []
    found = replace(found, own_ns=lambda: read.append(1) or own.items())
    usual, one, other = (found.number < 5, found.number == 5, found.number == 9)
    own[1][one] += 5 * MS
    own[0][other] += 5 * MS
    each = [(one, 5 * MS), (other, 5 * MS), (other, 6 * MS)]
    assert found.ranks_behind_each(usual, each) == [(1,), (0,), ()]
    assert len(read) == 1


def test_ranks_take_turns_unless_most_of_them_are_late_or_few_steps_have_one():
    found = columns(0, 0, 0)
    own = dict(found.own_ns())
    found = replace(found, own_ns=own.items)
    slow = np.isin(found.number, [5, 10, 15])
    own[1][found.number == 5] += 5 * MS
    own[2][found.number == 9] += 5 * MS  # at the end of the step before
    assert found.ranks_in_turn(~slow, slow, 5 * MS) == (1, 2)
    assert found.ranks_in_turn(~slow, slow, 5 * MS + 1) == ()
    own[0][found.number == 5] += 5 * MS
    assert found.ranks_in_turn(~slow, slow, 5 * MS) == ()


def test_work_changes_if_it_differs_by_more_than_the_share_of_the_larger():
    found = columns(0)
    after = found.number >= 12
    found.work["calls"][:] = np.where(after, 10, 8)
    found.work["nbytes"][:] = np.where(after, 8, 10)
    assert found.work_changed(~after, after, 0.19) == ["calls", "nbytes"]
    assert found.work_changed(~after, after, 0.2) == []


def test_steps_of_two_kinds_that_alternate_do_not_change_their_work():
    found = columns(0)
    after = found.number >= 11  # 9 steps of each side: the median is of the kind with one more
    found.work["calls"][:] = np.where(found.number % 2, 3, 5)
    assert [float(np.median(found.work["calls"][side])) for side in (~after, after)] == [5, 3]
    assert found.work_changed(~after, after, 0.05) == []
