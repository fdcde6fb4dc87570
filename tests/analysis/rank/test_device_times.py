"""What a device did, in the place of what the host saw. Times are in ms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsprof.analysis.aggregates.communication import Communication
from dsprof.analysis.aggregates.overlap import Overlap
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.rank.device_times import on_device_clock
from dsprof.analysis.rank.intervals import Intervals
from dsprof.trace.background import mark_background
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Stall
from tests.factories.trace import (
    MS,
    device_step,
    enqueued,
    header,
    rank_trace,
    span,
    stall,
    step,
    summary,
    sync,
)

SIDE = {"stream": 7, "is_side": True}
FAR = {"stream": 8, "is_side": True}


def one_step(comm: list[Any], stalls: list[Stall], **fields: Any) -> RankTrace:
    """A rank whose host ended step 0 at 10 ms, and whose device needed 100 for it."""
    given = {"steps": [step(0, 0, 10)], "device_steps": [device_step(0, 0, 100)], **fields}
    return rank_trace(comm=comm, stalls=stalls, head=header(device="cuda", backend="nccl"), **given)


def exposed_ms(trace: RankTrace) -> float | None:
    total = summary(trace)[Steps].total
    assert total.compute_ns is None
    assert total.other_ns + (total.exposed_ns or 0) == total.total_ns
    return None if total.exposed_ns is None else total.exposed_ns / MS


def test_a_step_is_as_long_as_the_device_took() -> None:
    one = enqueued("all_reduce", 1, step=0)
    steps = summary(one_step([one], [stall(one, "collective", 20, 50)]))[Steps]
    assert (steps.total.total_ns, steps.total.exposed_ns) == (100 * MS, 30 * MS)
    assert steps.exposed_share == pytest.approx(0.3)


@pytest.mark.parametrize("has_stall", [True, False])
def test_with_collectives_in_graphs_steps_are_as_long_as_the_device_took(has_stall: bool) -> None:
    """What replays send is not recorded, but when the device came to the end of a step is."""
    one = enqueued("all_reduce", 1, step=0, captured=True)
    steps = summary(one_step([one], [stall(one, "collective", 20, 50)] * has_stall))[Steps]
    assert (steps.total.total_ns, steps.total.exposed_ns) == (100 * MS, None)


def test_phases_of_the_host_say_nothing_of_the_device() -> None:
    one = enqueued("all_reduce", 1, step=0)
    trace = one_step([one], [stall(one, "collective", 20, 50)], spans=[span("forward", 0, 9)])
    assert exposed_ms(trace) == 30


def test_on_the_main_stream_a_collective_is_exposed_from_start_to_end() -> None:
    one, two = (enqueued("all_reduce", 1, step=0) for _ in range(2))
    trace = one_step([one, two], [stall(one, "collective", 0, 5), stall(two, "collective", 5, 12)])
    assert exposed_ms(trace) == 12
    (row,) = summary(trace)[Communication].rows.values()
    assert (row.exposed_ns, row.in_flight_ns) == (12 * MS, 12 * MS)
    assert row.algbw == pytest.approx(2 * (1 << 20) / 0.012)


def test_on_a_device_streams_tell_who_waits_and_not_threads() -> None:
    """An autograd thread may run a backward inside forward, as for a penalty on gradients."""
    one = enqueued("all_gather", 1, step=0, thread=3, phase="forward", done_ns=60 * MS)
    never = enqueued("all_gather", 2, step=0, thread=3, phase="forward")
    phases = [span("forward", 0, 9, thread=2)]
    stalls = [stall(one, "collective", 20, 50)]
    for comm, exposed in (([one], 30), ([one, never], None)):
        trace = one_step(comm, stalls, spans=phases)
        mark_background(trace)
        assert exposed_ms(trace) == exposed


def test_a_wait_is_exposed_and_the_rest_of_the_flight_overlaps() -> None:
    one = enqueued("all_gather", 1, step=0, is_async=True, waits=1)
    trace = one_step([one], [stall(one, "wait", 30, 40, issued=10)])
    assert exposed_ms(trace) == 10
    overlap = summary(trace)[Overlap]
    assert overlap.is_timed
    assert overlap.bounds == (pytest.approx(2 / 3), pytest.approx(2 / 3))


def test_a_wait_that_held_nobody_leaves_the_end_uncertain() -> None:
    one = enqueued("all_gather", 1, step=0, is_async=True, waits=1)
    overlap = summary(one_step([one], [stall(one, "wait", 40, 40, issued=10)]))[Overlap]
    assert (overlap.least_in_flight_ns, overlap.most_in_flight_ns) == (0, 30 * MS)


def test_on_a_side_stream_a_collective_is_exposed_while_the_main_stream_waits_for_that() -> None:
    # On stream 7 from 20 to 50; the main stream waits for stream 7 from 40 to 60, where the last
    # 10 ms are a copy that comes after the collective.
    one = enqueued("all_reduce", 1, step=0)
    stalls = [stall(one, "collective", 20, 50, **SIDE), stall(one, "event", 40, 60, awaited=7)]
    trace = one_step([one], stalls)
    assert exposed_ms(trace) == 10
    overlap = summary(trace)[Overlap]
    assert (overlap.sync_calls, overlap.async_calls) == (0, 1)
    assert overlap.bounds == (pytest.approx(2 / 3), pytest.approx(2 / 3))


def test_a_stall_belongs_to_the_collective_that_ran_meanwhile_not_to_the_newest() -> None:
    # Bucket 1 from 0 to 30, bucket 2 from 30 to 60. The wait for both lasts from 20 to 60.
    one = enqueued("reduce", 1, step=0)
    two = enqueued("all_reduce", 2, step=0)
    stalls = [
        stall(one, "collective", 0, 30, **SIDE),
        stall(two, "collective", 30, 60, **SIDE),
        stall(two, "event", 20, 60, awaited=7),
    ]
    rows = summary(one_step([one, two], stalls))[Communication].rows
    assert {kind.op: row.exposed_ns / MS for kind, row in rows.items()} == {
        "reduce": 10,
        "all_reduce": 30,
    }


def test_a_wait_for_another_stream_exposes_nothing_here() -> None:
    one = enqueued("all_reduce", 1, step=0)
    stalls = [stall(one, "collective", 20, 50, **SIDE), stall(one, "event", 20, 50, awaited=9)]
    assert exposed_ms(one_step([one], stalls)) == 0


def test_streams_wait_for_streams_that_wait_for_the_collective() -> None:
    """The main stream waits for stream 7 while that waits for stream 8, which communicates."""
    one = enqueued("all_reduce", 1, step=0)
    stalls = [
        stall(one, "collective", 10, 50, **FAR),
        stall(one, "event", 20, 50, awaited=8, **SIDE),
        stall(one, "event", 30, 70, awaited=7),
    ]
    assert exposed_ms(one_step([one], stalls)) == 20


def test_a_host_that_waits_for_all_streams_waits_for_each() -> None:
    one = enqueued("all_reduce", 1, step=0)
    stalls = [
        stall(one, "collective", 10, 50, **SIDE),
        stall(one, "synchronize", 30, 60, awaited=-1),
    ]
    assert exposed_ms(one_step([one], stalls)) == 20


@pytest.mark.parametrize("why", ["no stall", "no place", "captured", "no stalls at all"])
def test_what_is_not_known_makes_exposed_none_and_not_zero(why: str) -> None:
    one, two = (enqueued("all_reduce", 1, step=0) for _ in range(2))
    loose = stall(two, "collective", 0, 0)
    two.args.captured = why == "captured"
    stalls = [stall(one, "collective", 0, 5)] + [loose] * (why == "no place")
    trace = one_step([one, two], [] if why == "no stalls at all" else stalls)
    assert exposed_ms(trace) is None


def test_gathers_that_end_with_the_wait_for_the_last_one_are_exposed_in_it() -> None:
    """As DeepSpeed up to 0.18 waits for the parameters that ZeRO-3 gathers after the step."""
    asked = {"step": 0, "is_async": True, "request": 1, "requested": "all_gather_into_tensor"}
    first, lost = (enqueued("all_gather", at, **asked) for at in (1, 2))
    last, late = (enqueued("all_gather", at, **asked, waits=1) for at in (3, 4))
    stalls = [stall(last, "wait", 30, 40, issued=10), stall(late, "wait", 50, 60, issued=45)]
    assert exposed_ms(one_step([first, last, late], stalls)) == 20
    assert exposed_ms(one_step([first, last, late, lost], stalls[:1])) is None
    assert exposed_ms(one_step([first], [])) is None


def test_what_the_device_had_not_come_to_at_the_end_is_no_step() -> None:
    one, two = enqueued("all_reduce", 1, step=0), enqueued("all_reduce", 12, step=1)
    stalls = [stall(one, "collective", 20, 50)]
    trace = one_step([one, two], stalls, steps=[step(0, 0, 10), step(1, 10, 20)])
    assert summary(trace)[Steps].numbers == [0]
    assert exposed_ms(trace) == 30


def test_collectives_of_the_host_keep_their_times() -> None:
    one, two = enqueued("all_reduce", 1, step=0), sync("all_gather_object", 60, 20, step=0)
    assert exposed_ms(one_step([one, two], [stall(one, "collective", 20, 50)])) == 50


def test_a_trace_of_the_host_is_left_alone() -> None:
    trace = rank_trace(comm=[sync("all_reduce", 0, 5, step=0)], steps=[step(0, 0, 9)])
    assert on_device_clock(trace) is trace


def test_intersection_of_intervals_against_counting_every_moment() -> None:
    random = np.random.default_rng(1)
    for _ in range(200):
        sets = []
        for _ in range(2):
            starts = random.integers(0, 50, 6)
            sets.append(Intervals.union(starts, starts + random.integers(0, 12, 6)))
        moments = [
            {t for a, b in zip(one.starts, one.ends, strict=True) for t in range(a, b)}
            for one in sets
        ]
        both = sets[0] & sets[1]
        covered = {t for a, b in zip(both.starts, both.ends, strict=True) for t in range(a, b)}
        assert covered == moments[0] & moments[1]
        assert both.length_ns == len(covered)


def test_a_wait_whose_issue_nobody_marked_began_when_the_host_enqueued_it() -> None:
    call = enqueued("all_reduce", 5)
    held = stall(call, "wait", 30, 40, bound_ns=2 * MS)
    trace = rank_trace(comm=[call], stalls=[held], head=header(device="cuda"))
    rows = on_device_clock(trace).collectives
    assert (rows.issue_ns[0], rows.done_ns[0], rows.bound_ns[0]) == (5 * MS, 40 * MS, 2 * MS)
    marked = stall(call, "wait", 30, 40, issued=20)
    trace = rank_trace(comm=[call], stalls=[marked], head=header(device="cuda"))
    assert on_device_clock(trace).collectives.issue_ns[0] == 20 * MS
