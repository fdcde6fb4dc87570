from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsprof.analysis.rank.intervals import Intervals, blocked, completion, exposed, phases, unseen
from tests.factories.trace import MS, issued, ns, rank_trace, span, sync

PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12)


def intervals(*pairs: tuple[int, int]) -> Intervals:
    starts, ends = np.array(pairs, np.int64).reshape(-1, 2).T
    return Intervals.union(starts, ends)


def covered(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for start, end in pairs for t in range(start, end)}


@given(PAIRS, PAIRS, st.integers(0, 40), st.integers(0, 40))
def test_union_covers_what_any_interval_covers(one, other, start, end):
    union = intervals(*one) | intervals(*other)
    truth = covered(one) | covered(other)
    assert covered(list(zip(union.starts.tolist(), union.ends.tolist(), strict=True))) == truth
    assert (union.starts[1:] > union.ends[:-1]).all()
    window = np.array([min(start, end)]), np.array([max(start, end)])
    assert union.within(*window) == [len(truth & set(range(min(start, end), max(start, end))))]


@given(PAIRS, st.integers(0, 40), st.integers(0, 40))
def test_what_is_near_a_window_holds_all_that_is_inside(pairs, start, end):
    start, end = sorted((start, end))
    some, window = intervals(*pairs), intervals((start, end))
    near = some.near(start, end)
    assert (near & window).starts.tolist() == (some & window).starts.tolist()
    assert (near.ends >= start).all()
    assert (near.starts <= end).all()


def test_nothing_covers_nothing():
    none = intervals()
    assert none.within(np.array([0]), np.array([100])).tolist() == [0]


def test_exposed_counts_threads_that_wait_at_the_same_time_once():
    comm = [sync("all_reduce", 10, 10, thread=1), sync("all_reduce", 15, 10, thread=2)]
    union = exposed(rank_trace(comm=comm))
    assert union.within(np.array([0]), np.array([ns(100)])) == [15 * MS]


def test_sync_call_without_a_wait_blocks_until_it_returns():
    call = sync("barrier", 5, 7, wait_ns=0, waited_ns=0, waits=0)
    start, end = blocked(rank_trace(comm=[call]).collectives)
    assert (start[0], end[0]) == (5 * MS, 12 * MS)


def test_async_call_blocks_in_its_wait_alone():
    call = issued("all_gather", 0, 30, wait=20, waited=30)
    start, end = blocked(rank_trace(comm=[call]).collectives)
    assert (start[0], end[0]) == (20 * MS, 30 * MS)


def test_an_estimated_wait_shows_completion_to_its_bounds_only():
    seen = {"wait": 20, "waited": 30, "pending_ns": ns(12)}
    known, estimated = (
        issued("all_reduce", 0, 30, **seen, is_estimated=value) for value in (False, True)
    )
    rows = rank_trace(comm=[known, estimated]).collectives
    earliest, latest = completion(rows)
    assert earliest.tolist() == [30 * MS, 12 * MS]
    assert latest.tolist() == [30 * MS, 30 * MS]


def test_later_waits_add_no_more_than_was_blocked():
    call = issued("all_gather", 0, 25, wait=20, waited=90, waits=2, blocked_ns=5 * MS)
    start, end = blocked(rank_trace(comm=[call]).collectives)
    assert end[0] - start[0] == 5 * MS


@pytest.mark.parametrize(
    ("waits", "is_known"),
    [
        ((True, True, False), True),
        ((True, True, True, False, False), True),
        ((True, False, True), False),
        ((False, True, True), False),
        ((True, False, False), False),
        ((False, False, False), False),
    ],
)
def test_calls_that_a_program_leaves_at_its_end_held_nobody(waits, is_known):
    """Where more than half of a line's calls were waited for, and all the others came later."""
    seen = {"wait": 8, "waited": 9}
    comm = [
        issued("all_to_all", at, at + 5, site=1, **(seen if is_waited else {}))
        for at, is_waited in enumerate(waits)
    ]
    elsewhere = issued("all_to_all", 10, 15, site=2, **seen)
    rows = rank_trace(comm=[*comm, elsewhere]).collectives
    expected = [not (is_waited or is_known) for is_waited in waits]
    assert unseen(rows).tolist() == [*expected, False]


def test_async_call_that_nobody_waited_for_blocks_nothing():
    start, end = blocked(rank_trace(comm=[issued("all_gather", 3, 9)]).collectives)
    assert end[0] == start[0]


def test_completion_lies_between_last_seen_pending_and_first_seen_done():
    polled = issued("all_gather", 0, 30, pending_ns=ns(12))
    earliest, latest = completion(rank_trace(comm=[polled]).collectives)
    assert (earliest[0], latest[0]) == (12 * MS, 30 * MS)


@pytest.mark.parametrize(
    "call", [sync("all_reduce", 10, 20), issued("all_reduce", 5, 30, wait=12, waited=30)]
)
def test_completion_is_exact_where_a_wait_saw_it(call):
    earliest, latest = completion(rank_trace(comm=[call]).collectives)
    assert earliest[0] == latest[0] == 30 * MS


def test_a_wait_that_did_not_block_leaves_the_moment_open():
    idle = issued("all_gather", 5, 30, wait=29.99, waited=30, pending_ns=ns(9))
    earliest, latest = completion(rank_trace(comm=[idle]).collectives)
    assert (earliest[0], latest[0]) == (9 * MS, 30 * MS)


def test_completion_that_was_not_seen_is_zero():
    _, latest = completion(rank_trace(comm=[issued("send", 1, None)]).collectives)
    assert latest[0] == 0


def test_annotations_are_no_phases():
    spans = [span("forward", 0, 10), span("mine", 0, 50, is_annotation=True)]
    union = phases(rank_trace(spans=spans))
    assert union.within(np.array([0]), np.array([ns(100)])) == [10 * MS]


def gathers(*waits: int | None, **fields: object) -> list:
    """Gathers asked of a library, one a millisecond; a wait takes one, where there is one."""
    given = {"requested": "all_gather_into_tensor", "request": 1, "step": 1, **fields}
    return [
        issued("all_gather", at, 9, wait=wait, waited=wait and wait + 1, **given)
        for at, wait in enumerate(waits)
    ]


def test_gathers_that_end_with_the_wait_for_the_last_one_are_seen():
    rows = rank_trace(comm=gathers(None, None, 8, None)).collectives
    assert unseen(rows).tolist() == [False, False, False, True]


def test_the_wait_for_a_batch_is_for_all_that_was_launched_together():
    together = [{"requested": "", "request": 0, "coalesced": number} for number in (3, 4)]
    rows = rank_trace(comm=[*gathers(None, 8, **together[0]), *gathers(None, **together[1])])
    assert unseen(rows.collectives).tolist() == [False, False, True]


@pytest.mark.parametrize(
    "last",
    [
        {"thread": 7},
        {"group": 2},
        {"step": 2},
        {"phase": "backward"},
        {"requested": "all_reduce"},
    ],
    ids=str,
)
def test_a_wait_for_another_kind_of_gather_tells_nothing(last):
    rows = rank_trace(comm=gathers(None) + gathers(8, **last)).collectives
    assert unseen(rows).tolist() == [True, False]


def test_a_wait_for_what_no_library_asked_for_may_have_gone_unseen():
    rows = rank_trace(comm=gathers(None, 8, request=0)).collectives
    assert unseen(rows).tolist() == [True, False]
