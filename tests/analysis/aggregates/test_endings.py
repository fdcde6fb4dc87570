from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.ending import Ending, LastCall, Symptoms
from dsprof.analysis.group_calls import Call, RankFlight
from dsprof.analysis.rank import ending as module
from dsprof.analysis.summary import RankClock
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Site, Trailer
from tests.factories.trace import (
    MS,
    alive,
    counters,
    engine,
    enqueued,
    failing,
    group,
    hanging,
    header,
    heartbeat,
    rank_trace,
    stall,
    step,
    sync,
)


def ending(trace: RankTrace) -> Ending:
    return Endings.collect(trace, RankClock(offset_ns=5 * MS)).ranks[trace.rank]


def test_the_last_completed_collective_and_what_was_in_flight() -> None:
    comm = [
        sync("all_reduce", 100, 10, seq=1, step=0),
        sync("broadcast", 200, 10, seq=2, step=1),
        hanging("all_gather", 300, seq=3, step=1),
    ]
    end = ending(rank_trace(comm=comm, steps=[step(0, 0, 150)], memory=[alive(900)]))
    assert end.last is not None
    assert (end.last.op, end.last.number, end.last.group, end.last.step) == (
        "broadcast", 2, "world", 1,
    )  # fmt: skip
    assert (end.step, end.alive_ns) == (0, 905 * MS)
    view = end.groups[group().key]
    assert (view.enqueued, view.completed, view.in_flight) == (3, 2, [3])
    assert view.calls[3].in_flight_ns == 600 * MS


def test_a_run_has_failed_if_nobody_goes_on_for_long_after_an_exception() -> None:
    raised = Trailer(reason="exit", exception="ValueError", exception_ns=1000 * MS)

    def has_failed(first: Trailer | None, alive_ms: float) -> bool:
        traces = rank_trace(0, trailer=first), rank_trace(1, trailer=None, memory=[alive(alive_ms)])
        return Endings({t.rank: ending(t) for t in traces}, {}).has_failed(100 * MS)

    assert has_failed(raised, 10_900)
    assert not has_failed(raised, 11_100)
    assert not has_failed(None, 900)
    assert not has_failed(Trailer(reason="exit"), 900)


def test_a_wait_that_an_exception_ended_is_in_flight_until_then() -> None:
    end = ending(rank_trace(comm=[failing("all_reduce", 100, 10, seq=1)], memory=[alive(900)]))
    call = end.groups[group().key].calls[1]
    assert (call.has_failed, call.is_in_flight, call.in_flight_ns) == (True, True, 10 * MS)


def test_what_a_stream_has_passed_has_ended_with_all_before_it() -> None:
    comm = [enqueued("all_reduce", 100 * n, seq=n) for n in range(1, 5)]
    head = header(device="cuda", backend="nccl")
    end = ending(rank_trace(comm=comm, head=head, stalls=[stall(comm[1], "wait", 200, 300)]))
    assert (end.groups[group().key].completed, end.groups[group().key].in_flight) == (2, [3, 4])


def test_sends_and_receives_are_counted_by_side() -> None:
    comm = [sync("send", 100 * n, 1, seq=n, peer=1) for n in (1, 2)]
    comm += [sync("recv", 500, 1, seq=1, peer=1)]
    end = ending(rank_trace(comm=comm))
    key = group().key
    assert end.pairs == {(key, "send", 1): 2, (key, "recv", 1): 1}
    assert end.groups == {}


def test_a_send_that_nobody_waited_for_is_not_known_to_be_in_flight() -> None:
    unknown = {"done_ns": 0, "wait_ns": 0, "waited_ns": 0, "waits": 0, "peer": 1}
    comm = [sync("send", 100, 1, seq=1, pending_ns=100 * MS, **unknown)]
    assert ending(rank_trace(comm=comm)).pairs_open == ()


def test_of_many_in_flight_the_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPEN_CALLS", 40)
    comm = [hanging("all_reduce", n, seq=n) for n in range(1, 100)]
    view = ending(rank_trace(comm=comm)).groups[group().key]
    assert (view.in_flight[0], view.enqueued) == (80, 99)


@pytest.mark.parametrize(
    ("fields", "is_whole"),
    [
        ({}, True),
        ({"trailer": None}, True),
        ({"trailer": None, "broken_lines": 1}, True),  # its last line, cut
        ({"broken_lines": 1}, False),
        ({"trailer": Trailer(reason="disable")}, False),
        ({"trailer": Trailer(reason="exit", dropped=1)}, False),
        ({"trailer": Trailer(reason="exit", failed_hooks={"c10d": "why"})}, False),
        ({"counters": [counters(3)]}, True),
        ({"counters": [counters(3)], "trailer": None}, False),
        ({"head": header(config={"every": 10}), "trailer": None}, False),
    ],
)
def test_later_calls_may_be_missing(fields: dict[str, Any], is_whole: bool) -> None:
    assert ending(rank_trace(**fields)).is_whole is is_whole


def test_a_group_is_kept_once() -> None:
    both = [Endings.collect(rank_trace(rank), RankClock()) for rank in range(2)]
    merged = both[0].merge(both[1])
    assert sorted(merged.ranks) == [0, 1]
    assert [names.ranks for names in merged.groups.values()] == [(0, 1)]


def test_files_of_other_tools_do_not_say_how_they_ended() -> None:
    assert not Endings.collect(rank_trace(is_foreign=True), RankClock()).ranks


@pytest.mark.parametrize(("hook", "is_whole"), [("plugin counts", True), ("c10d", False)])
def test_a_broken_hook_of_a_plugin_takes_nothing_from_the_record(hook: str, is_whole: bool) -> None:
    trailer = Trailer(reason="exit", failed_hooks={hook: "ValueError: broken"})
    assert ending(rank_trace(trailer=trailer)).is_whole is is_whole


def test_all_that_a_killed_rank_leaves() -> None:
    own = {"step": 2, "site": 7, "dtype": "bfloat16", "tensors": 1}
    comm = [
        sync("all_reduce", 10, 5, seq=1, reduce_op="sum", **own),
        hanging("all_gather", 300, seq=2, nbytes=200, elements=50, fetch=3, **own),
        sync("send", 20, 1, seq=1, peer=1, **own),
        hanging("send", 320, seq=2, peer=1, **own),
        hanging("recv", 330, seq=1, peer=-1, **own),
    ]
    trace = rank_trace(
        comm=comm,
        engine=engine(3),
        steps=[step(0, 0, 100), step(1, 100, 200)],
        sites={7: Site(7, "train.py", 40, "main")},
        heartbeats=[heartbeat(400, 3), heartbeat(500, 2, 100)],
        trailer=None,
    )
    frame, key = "train.py:40 main", group().key
    done = Call(
        op="all_reduce",
        elements=(1 << 18, 1 << 18),
        dtype="bfloat16",
        created_ns=15 * MS,
        is_in_flight=False,
        frame=frame,
        is_even=True,
        step=2,
        nbytes=1 << 20,
        until_ns=20 * MS,
        reduce_op="sum",
    )
    gather = replace(
        done,
        op="all_gather",
        elements=(50, 50),
        created_ns=305 * MS,
        is_in_flight=True,
        is_even=False,
        is_of_zero3=True,
        nbytes=200,
        until_ns=505 * MS,
        reduce_op="",
    )
    assert ending(trace) == Ending(
        trailer=None,
        world_size=2,
        backend="gloo",
        step=1,
        alive_ns=505 * MS,
        heartbeat=heartbeat(500, 2, 100),
        is_whole=True,
        is_on_device=False,
        groups={key: RankFlight(2, 1, {1: done, 2: gather}, ())},
        pairs_open=(),  # without a wait, or a state that shows one, they may be complete
        pairs={(key, "send", 1): 2, (key, "recv", -1): 1},
        last=LastCall("all_reduce", 1, "world", 2, True),
        last_frame=frame,
        bound_ns=0,
        has_state=False,
        symptoms=Symptoms(),
        failed_ns=None,
        host="node-a",
    )
