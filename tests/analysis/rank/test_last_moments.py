"""What a rank did after its trace was last written."""

from __future__ import annotations

import msgspec
import pytest

from dsprof.analysis.rank.last_moments import to_the_end
from dsprof.trace.dumps.state_file import UNFOLLOWED, RankState, StateCall
from dsprof.trace.schema import Header
from tests.factories.trace import MS, hanging, header, rank_trace, span, step, sync


def call(number: int, done_ns: int = 0, dtype: str = "bfloat16") -> StateCall:
    """An all-reduce of 1200 bytes that began at 10 ms for each number."""
    head = header()
    issue_ns = head.started_monotonic_ns + 10 * MS * number
    done_ns = head.started_monotonic_ns + done_ns if done_ns else 0
    return StateCall(
        number, 1, number, "all_reduce", dtype, 1200, issue_ns, 1, 0, 1, -1, False, done_ns
    )


def state(*calls: StateCall, head: Header | None = None) -> RankState:
    head = head or header()
    beat_ns = head.started_monotonic_ns + 500 * MS
    return RankState(head, 1, beat_ns, 3, "forward", list(calls), {}, 0, {}, {})


@pytest.mark.parametrize(
    ("dtype", "elements"),
    [("bfloat16", 600), ("float32", 300), ("int8", 1200), ("bool", 1200), ("uint1", 1200)],
)
def test_calls_that_only_the_state_knows_are_added(dtype, elements):
    trace = rank_trace(comm=[])
    trace.state = state(call(7, 90 * MS, dtype), call(8, dtype=dtype))
    rows = to_the_end(trace).collectives
    assert rows.id.tolist() == [7, 8]
    assert rows.issue_ns.tolist() == [70 * MS, 80 * MS]
    assert rows.done_ns.tolist() == [90 * MS, 0]
    assert rows.is_open.tolist() == [False, True]
    assert rows.elements.tolist() == [elements, elements]


def test_a_call_that_was_in_flight_when_written_gets_its_end():
    written = hanging("all_reduce", 40, seq=4, step=3)
    trace = rank_trace(comm=[written])
    number = int(trace.collectives.id[0])
    trace.state = state(call(number, 95 * MS))
    rows = to_the_end(trace).collectives
    assert (rows.done_ns.tolist(), rows.is_open.tolist()) == ([95 * MS], [False])


def test_a_wait_that_failed_and_a_call_that_nobody_follows():
    failed_ns = -(header().started_monotonic_ns + 90 * MS)
    failed = msgspec.structs.replace(call(7), done_ns=failed_ns)
    unfollowed = msgspec.structs.replace(call(8), done_ns=UNFOLLOWED)
    trace = rank_trace(comm=[])
    trace.state = state(failed, unfollowed)
    rows = to_the_end(trace).collectives
    assert (rows.done_ns.tolist(), rows.is_open.tolist()) == ([0, 0], [False, False])
    assert (rows.waited_ns.tolist(), rows.waits.tolist()) == ([90 * MS, 0], [1, 0])
    assert rows.pending_ns.tolist() == [70 * MS, 0]


def test_calls_from_before_the_recording_are_left_out():
    early = header(started_monotonic_ns=header().started_monotonic_ns + 75 * MS)
    trace = rank_trace(comm=[], head=early)
    trace.state = state(call(7), call(8), head=early)
    assert to_the_end(trace).collectives.issue_ns.tolist() == [5 * MS]


@pytest.mark.parametrize(
    ("ident", "steps", "anchors", "thread", "is_beside"),
    [
        (70_002, 1, 2, 2, False),
        (70_003, 1, 2, 3, False),
        (70_004, 1, 2, 4, True),
        (70_004, 0, 2, 4, False),
        (70_004, 1, 0, 4, False),  # it may be the thread that trains
    ],
)
def test_a_thread_that_first_communicates_after_a_step_runs_beside_the_training(
    ident: int, steps: int, anchors: int, thread: int, is_beside: bool
) -> None:
    """Thread 2 trains, and thread 3 reduces gradients for it; the state knows them as 70,00x."""
    trace = rank_trace(
        comm=[
            sync("all_reduce", 20 * n, 5, seq=n, step=0, phase="backward", thread=n + 1)
            for n in (1, 2)
        ],
        spans=[span("forward", 0, 10, thread=2)],
        steps=[step(n, 0, 50) for n in range(steps)],
    )
    ids = trace.collectives.id.tolist()[:anchors]
    known = [msgspec.structs.replace(call(one), thread=70_002 + n) for n, one in enumerate(ids)]
    trace.state = state(*known, msgspec.structs.replace(call(7), thread=ident))
    rows = to_the_end(trace).collectives
    assert rows.thread.tolist() == [2, 3, thread]
    assert rows.is_background.tolist() == [False, False, is_beside]


def test_the_state_is_a_heartbeat():
    trace = rank_trace(comm=[])
    trace.state = state(call(7), call(9), call(8, 90 * MS))
    (beat,) = to_the_end(trace).heartbeats
    assert (beat.time_ns, beat.step, beat.in_flight) == (500 * MS, 2, 2)
    assert beat.oldest_ns == 430 * MS


def test_without_a_state_the_trace_is_as_written():
    trace = rank_trace(comm=[])
    assert to_the_end(trace) is trace
