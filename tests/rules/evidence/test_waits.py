from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.wait_causes import Awaited, WaitCauses
from dsprof.rules.evidence.waits import longest_wait, longest_waits, name_of
from tests.factories.trace import flush, issued, rank_trace, step, summary, sync


def named(library="", purpose="other", name="", family="all_reduce", phase="", is_async=True):
    return name_of(Awaited(library, purpose, name, family, phase, is_async))


def test_words_for_what_was_waited_for():
    assert named("DDP", "gradients", "bucket 2", phase="backward") == (
        "bucket 2 of DDP, all_reduce in backward"
    )
    assert named("", "parameters", "prefetched", "all_gather") == (
        "parameters prefetched, all_gather"
    )
    assert named("", "other", "train.py:9", "barrier") == "train.py:9, barrier"
    assert named() == "all_reduce"


def awaits(*comm) -> WaitCauses:
    return summary(rank_trace(steps=[step(0, 0, 100)], comm=comm))[WaitCauses]


def test_the_longest_wait_in_a_sentence():
    found = awaits(
        sync("barrier", 0, 30, step=0), issued("send", 40, 60, wait=45, waited=60, step=0)
    )
    assert (
        longest_wait(found)
        == "The longest wait, 30.0 ms per step, is for barrier: the call itself waits."
    )
    assert longest_wait(found, only_async=True) == (
        "The longest wait, 15.0 ms per step, is for send: it starts 5.00 ms before the "
        "wait, and is in flight for 20.0 ms."
    )
    assert longest_waits(found).rows[1][3:] == pytest.approx((15, 5, 20))


def test_ddp_waits_for_all_its_buckets_at_the_last():
    comm = issued("all_reduce", 40, 60, wait=45, waited=60, step=0, flush=1)
    flushes = [flush(1, 40, 20, library="DDP", bucket=3, step=0)]
    trace = rank_trace(steps=[step(0, 0, 100)], comm=[comm], flushes=flushes)
    found = summary(trace)[WaitCauses]
    assert "bucket 3 of DDP" in longest_wait(found)
    assert "before DDP waits, for all buckets together." in longest_wait(found)


def test_without_a_wait_nothing_is_said():
    assert longest_wait(awaits()) == ""
    assert longest_wait(awaits(sync("barrier", 0, 30, step=0)), only_async=True) == ""
