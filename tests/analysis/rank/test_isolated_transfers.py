from __future__ import annotations

import numpy as np
import pytest

from dsprof.analysis.rank.isolated_transfers import alone, isolated
from tests.factories.trace import issued, ns, rank_trace, sync


def said(*comm):
    return isolated(rank_trace(comm=comm)).tolist()


def test_only_intervals_that_no_other_overlaps_are_alone():
    starts, ends = np.array([30, 0, 10, 12, 50, 60]), np.array([40, 10, 20, 15, 50, 70])
    assert alone(starts, ends).tolist() == [True, True, False, False, False, True]
    assert alone(np.zeros(0, np.int64), np.zeros(0, np.int64)).tolist() == []


def test_a_call_that_held_its_rank_from_begin_to_end_is_undisturbed():
    assert said(sync("all_reduce", 0, 10), sync("all_reduce", 20, 10)) == [True, True]
    assert said(issued("all_reduce", 0, 10, wait=0.1, waited=10)) == [True]


def test_compute_beside_it_disturbs():
    assert said(issued("all_reduce", 0, 10, wait=5, waited=10)) == [False]


@pytest.mark.parametrize(("wait", "is_alone"), [(0.9, True), (1.1, False)])
def test_a_tenth_of_its_time_may_pass_before_the_rank_waits(wait, is_alone):
    assert said(issued("all_reduce", 0, 10, wait=wait, waited=10)) == [is_alone]


@pytest.mark.parametrize(("pending", "is_known"), [(9.1, True), (8.9, False)])
def test_the_end_is_known_to_a_tenth_of_the_time_in_flight(pending, is_known):
    bounded = issued(
        "all_reduce", 0, 10, wait=0.01, waited=10, pending_ns=ns(pending), is_estimated=True
    )
    assert said(bounded) == [is_known]


def test_another_collective_beside_it_disturbs_both():
    beside = issued("all_gather_into_tensor", 5, 12, wait=12, waited=12)
    assert said(sync("all_reduce", 0, 10), beside) == [False, False]


def test_an_end_that_is_only_bounded_is_not_known():
    loose = issued("all_reduce", 0, 10, wait=0.01, waited=10, pending_ns=ns(2), is_estimated=True)
    assert said(loose) == [False]
    assert said(issued("all_reduce", 0, None)) == [False]
