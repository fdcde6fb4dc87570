from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.communication import Communication
from dsprof.analysis.aggregates.steps import Steps
from dsprof.rules.evidence.calls import (
    blocked_ms,
    caller,
    calls_per_step,
    calls_table,
    least_blocked_ms,
    over_all_ranks,
)
from dsprof.trace.schema import Site
from tests.factories.trace import group, rank_trace, step, summary, sync


def rank(number: int, group_id: int, blocked_ms: float, calls: int = 2):
    """One of two ranks, which calls barriers in a group of its own, or in that of all."""
    own = group(1, id=group_id, key=str(group_id), label=f"group {group_id}")
    groups = {1: group(2), group_id: own} if group_id > 1 else {1: group(2)}
    comm = [
        sync("barrier", 10 * n, blocked_ms, nbytes=0, step=0, group=group_id) for n in range(calls)
    ]
    return rank_trace(number, steps=[step(0, 0, 100)], comm=comm, groups=groups)


def over(*ranks):
    run = summary(*ranks)
    return over_all_ranks(run[Communication].rows, run[Steps])


def test_groups_of_one_kind_on_other_ranks_are_put_together():
    calls = over(rank(0, 2, 3), rank(1, 3, 5))
    ((kind, _),) = calls.items()
    assert kind.group == "group 2 and 1 more"
    assert calls_per_step(calls) == 2
    assert blocked_ms(calls) == pytest.approx(8)
    assert least_blocked_ms(calls) == pytest.approx(6)


def test_one_group_keeps_its_name():
    ((kind, _),) = over(rank(0, 1, 3), rank(1, 1, 5)).items()
    assert kind.group == "world"


def test_a_rank_that_takes_no_part_is_not_held():
    calls = over(rank(0, 2, 3), rank(1, 1, 0, calls=0))
    assert calls_per_step(calls) == 1
    assert blocked_ms(calls) == pytest.approx(3)
    assert least_blocked_ms(calls) == 0


def test_calls_in_two_groups_of_a_rank_are_added_up_and_count_it_once():
    def twice(number: int, first_ms: float, second_ms: float):
        groups = {n: group(2, id=n, key=str(n), label=f"group {n}") for n in (2, 3)}
        comm = [
            sync("barrier", 20 * n, ms, nbytes=0, step=0, group=n)
            for n, ms in ((2, first_ms), (3, second_ms))
            if ms
        ]
        return rank_trace(number, steps=[step(0, 0, 100)], comm=comm, groups=groups)

    calls = over(twice(0, 3, 4), twice(1, 5, 2))
    assert {kind.group for kind in calls} == {"group 2", "group 3"}
    assert (calls_per_step(calls), blocked_ms(calls)) == (2, pytest.approx(7))
    assert least_blocked_ms(calls) == pytest.approx(5)
    assert least_blocked_ms(over(twice(0, 3, 4), twice(1, 0, 0))) == 0


def test_no_calls_are_none():
    assert over(rank(0, 1, 0, calls=0), rank(1, 1, 0, calls=0)) == {}


def test_a_table_lists_the_calls_that_hold_longest_with_two_of_their_sites():
    comm = [
        sync("all_reduce", 10 * n, n, step=0, phase=f"phase {n}", nbytes=100 * n, tensors=1, site=1)
        for n in range(1, 11)
    ]
    comm += [sync("all_reduce", 200 + n, 1, step=0, phase="phase 9", nbytes=900, tensors=1, site=n)
             for n in (2, 2, 2, 3)]  # fmt: skip
    sites = {n: Site(n, "train.py", n) for n in (1, 2, 3)}
    run = summary(rank_trace(steps=[step(0, 0, 300)], comm=comm, sites=sites))
    rows = calls_table(run[Communication].rows).rows
    assert [row[2] for row in rows] == [f"phase {n}" for n in (9, 10, 8, 7, 6, 5, 4, 3)]
    where = "train.py:2, train.py:1"
    assert rows[0] == ("all_reduce", "world", "phase 9", where, 5.0, 900, 13.0, 13.0)


_PACKAGES = "/opt/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("files", "library"),
    [
        ([f"{_PACKAGES}/trainer/loop.py"] * 3, "trainer"),
        ([f"{_PACKAGES}/trainer/loop.py", f"{_PACKAGES}/trainer/log.py", "train.py"], "trainer"),
        ([f"{_PACKAGES}/trainer/loop.py", f"{_PACKAGES}/other/log.py", "train.py"], None),
        ([f"{_PACKAGES}/trainer/loop.py", "train.py"], None),
        (["/opt/lib/python3.11/concurrent/futures/thread.py"], None),
    ],
)
def test_a_library_is_the_caller_if_most_of_the_calls_are_its_own(files, library):
    sites = {n: Site(id=n, file=file, line=n) for n, file in enumerate(files, 1)}
    comm = [sync("barrier", 10 * n, 3, nbytes=0, step=0, site=n) for n in sites]
    trace = rank_trace(0, 1, steps=[step(0, 0, 100)], comm=comm, sites=sites)
    found = caller(summary(trace)[Communication].rows)
    assert (found and found.library) == library
