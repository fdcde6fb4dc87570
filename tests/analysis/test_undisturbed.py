from __future__ import annotations

import numpy as np

from dsprof.analysis.undisturbed import alone, undisturbed
from tests.factories.trace import issued, ns, rank_trace, sync


def said(*comm):
    return undisturbed(rank_trace(comm=comm)).tolist()


def test_only_intervals_that_no_other_overlaps_are_alone():
    starts, ends = np.array([30, 0, 10, 12, 50, 60]), np.array([40, 10, 20, 15, 50, 70])
    assert alone(starts, ends).tolist() == [True, True, False, False, False, True]
    assert alone(np.zeros(0, np.int64), np.zeros(0, np.int64)).tolist() == []


def test_a_call_that_held_its_rank_from_begin_to_end_is_undisturbed():
    assert said(sync("all_reduce", 0, 10), sync("all_reduce", 20, 10)) == [True, True]
    assert said(issued("all_reduce", 0, 10, wait=0.1, waited=10)) == [True]


def test_compute_beside_it_disturbs():
    assert said(issued("all_reduce", 0, 10, wait=5, waited=10)) == [False]


def test_another_collective_beside_it_disturbs_both():
    beside = issued("all_gather_into_tensor", 5, 12, wait=12, waited=12)
    assert said(sync("all_reduce", 0, 10), beside) == [False, False]


def test_an_end_that_is_only_bounded_is_not_known():
    loose = issued("all_reduce", 0, 10, wait=0.01, waited=10, pending_ns=ns(2), is_estimated=True)
    assert said(loose) == [False]
    assert said(issued("all_reduce", 0, None)) == [False]
