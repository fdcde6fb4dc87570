from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.overlap import Overlap
from tests.factories import kineto
from tests.factories.device import rank as profiled
from tests.factories.trace import MS, header, issued, rank_trace, step, summary, sync


def overlap(*comm, **fields) -> Overlap:
    return summary(rank_trace(steps=[step(0, 0, 100)], comm=comm, **fields))[Overlap]


def test_overlap_is_one_minus_exposed_over_in_flight():
    found = overlap(issued("all_gather", 0, 40, wait=30, waited=40, step=0))
    assert found.exposed_ns == 10 * MS
    assert found.bounds == (pytest.approx(0.75), pytest.approx(0.75))


def test_collectives_in_flight_together_count_once():
    found = overlap(
        issued("all_gather", 0, 40, wait=30, waited=40, step=0),
        issued("all_gather", 10, 50, wait=40, waited=50, step=0),
    )
    assert (found.most_in_flight_ns, found.exposed_ns) == (50 * MS, 20 * MS)


def test_uncertain_completion_gives_an_interval():
    found = overlap(issued("all_gather", 0, 40, wait=45, waited=50, pending_ns=20 * MS, step=0))
    assert (found.least_in_flight_ns, found.most_in_flight_ns) == (20 * MS, 40 * MS)
    assert found.bounds == (pytest.approx(0.75), pytest.approx(0.875))


def test_synchronous_calls_are_counted_and_not_judged():
    found = overlap(sync("all_reduce", 0, 10, step=0))
    assert (found.sync_calls, found.async_calls, found.bounds) == (1, 0, None)


@pytest.mark.parametrize("untimed", [0, 1])
def test_one_rank_without_times_leaves_the_overlap_of_all_unknown(untimed):
    traces = [rank_trace(0), rank_trace(1)]
    traces[untimed].header.device = "cuda"
    assert not summary(*traces)[Overlap].is_timed
    assert summary(rank_trace(0), rank_trace(1))[Overlap].is_timed


def test_unwaited_calls_and_devices_are_marked():
    found = overlap(issued("all_reduce", 0, 9, step=0), head=header(device="cuda"))
    assert found.unwaited_calls == 1
    assert not found.is_timed


def test_kernels_of_warm_up_steps_are_not_counted():
    events = []
    for number, comm in enumerate((50, 50, 20, 30)):
        at = 100.0 * number
        events += [kineto.step(number, at, 100), kineto.kernel(kineto.GEMM, at, 40)]
        events.append(kineto.collective(at + 35, comm))
    found = summary(profiled(events, world_size=1))[Overlap]
    assert (found.rank_steps, found.on_device) == (2, True)
    assert found.least_in_flight_ns == found.most_in_flight_ns == 50 * MS
    assert found.exposed_ns == 40 * MS
