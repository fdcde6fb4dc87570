"""Collectives of threads beside the training hold no step up."""

from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.rank.intervals import exposed, unseen
from dsprof.trace.background import mark_background
from tests.factories.trace import MS, issued, rank_trace, span, step, summary, sync

TRAINING, BESIDE = 2, 3


def trained(*comm, rank=0):
    """A rank whose training thread runs one step of 100 ms."""
    phases = [
        span("forward", 0, 40, thread=TRAINING),
        span("backward", 40, 90, thread=TRAINING),
        span("step", 90, 100, thread=TRAINING),
    ]
    trace = rank_trace(rank, comm=comm, spans=phases, steps=[step(0, 0, 100)])
    mark_background(trace)
    return trace


def checkpoint(at, took, **fields):
    return sync("barrier", at, took, step=0, thread=BESIDE, seq=5, **fields)


def reduction(**fields):
    return sync("all_reduce", 50, 10, step=0, phase="backward", thread=TRAINING, **fields)


def test_a_wait_of_another_thread_is_not_exposed():
    """All of its calls, also one in backward and one between the phases."""
    phases = ((10, "forward"), (60, "backward"), (90, ""))
    trace = trained(reduction(), *(checkpoint(at, 25, phase=phase) for at, phase in phases))
    assert exposed(trace).length_ns == 10 * MS
    assert not unseen(trace.collectives).any()


@pytest.mark.parametrize("phase", ["backward", ""])
def test_a_thread_may_be_of_the_autograd_engine(phase):
    """The distributed one (RPC) runs backward where no phase is recorded."""
    autograd = sync("all_reduce", 70, 15, step=0, phase=phase, thread=BESIDE)
    assert exposed(trained(reduction(), autograd)).length_ns == 25 * MS


def test_a_call_beside_the_training_that_nobody_waited_for_leaves_exposed_known():
    call = issued("all_reduce", 10, 20, step=0, phase="forward", thread=BESIDE)
    assert not unseen(trained(reduction(), call).collectives).any()


def test_all_threads_count_where_no_phase_tells_which_one_trains():
    trace = rank_trace(comm=[checkpoint(10, 25)], steps=[step(0, 0, 100)])
    mark_background(trace)
    assert exposed(trace).length_ns == 25 * MS


def test_nobody_is_late_to_what_runs_beside_the_training():
    """Else the rank whose checkpoint takes longest would be a straggler."""
    ranks = [
        trained(reduction(seq=1), checkpoint(10, took, phase="forward"), rank=rank)
        for rank, took in enumerate((25, 1))
    ]
    found = summary(*ranks)[Arrivals].ranks.values()
    assert [rank.rows.seq.tolist() for rank in found] == [[1], [1]]
