"""Hangs on a device, where the host goes on and only the driver knows what has not ended."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from dsprof.analysis.hang.model import HangVerdict
from dsprof.config import Config
from dsprof.recording.recorder import live_state
from dsprof.recording.recorder.live_state import LiveState
from dsprof.recording.recorder.recorder import Recorder
from dsprof.recording.watchdog.calls import Calls
from dsprof.recording.watchdog.judgement import judge
from dsprof.recording.watchdog.paragraph import verdict_of
from dsprof.recording.watchdog.standings import standings_of
from dsprof.recording.watchdog.thread import Watchdog
from dsprof.trace.dumps import state_file
from dsprof.trace.dumps.hang_dump import HangDump, ProcessState, ThreadStack
from dsprof.trace.dumps.state_file import UNFOLLOWED, RankState, StateCall, read_state
from dsprof.trace.schema import Collective, Header, MemorySample
from dsprof.trace.scope import clock
from tests.factories.trace import SECOND, group, header

NOW = 1000 * SECOND


def call(number: int, done_ns: int) -> StateCall:
    given = {"op": "all_reduce", "dtype": "bfloat16", "nbytes": 1 << 20, "site": 0, "step": 5}
    return StateCall(
        id=number,
        group=1,
        seq=number,
        issue_ns=NOW - 60 * SECOND + number,
        thread=7,
        peer=-1,
        is_pair=False,
        done_ns=done_ns,
        **given,
    )


def dump(rank: int, calls: list[StateCall]) -> HangDump:
    who = header(rank=rank, device="cuda", backend="nccl", host="a")
    state = RankState(
        header=who,
        process_start=1,
        beat_ns=NOW,
        step=5,
        phase="backward",
        calls=calls,
        passed={},
        lost=0,
        groups={1: group()},
        sites={},
    )
    return HangDump(
        header=who,
        noticed_epoch_ns=1,
        noticed_ns=NOW,
        reason="waits",
        state=state,
        threads=[ThreadStack("MainThread", ("/home/user/train.py:8 main",))],
        process=ProcessState(state="S", waits_in="futex_wait"),
    )


def test_the_rank_that_a_device_waits_for_is_named() -> None:
    """Rank 0 has issued 13 on its device before it waited for that; 10 is the first unfinished."""
    passed = [call(number, UNFOLLOWED) for number in range(1, 10)]
    found = {
        0: dump(0, [*passed, *(call(number, 0) for number in range(10, 14))]),
        1: dump(1, passed),
    }
    assert judge(standings_of(found), 30 * SECOND).obstacles == {1: "idle"}
    verdict = verdict_of(found, 15 * SECOND)
    assert isinstance(verdict, HangVerdict)
    assert (verdict.kind, verdict.ranks) == ("never_entered", (1,))
    assert "all_reduce 10 of" in verdict.sentence


@pytest.mark.parametrize(
    ("of_the_other", "obstacle"),
    [([0], "joined"), ([UNFOLLOWED, 0], "joined"), ([UNFOLLOWED], "joining")],
)
def test_a_call_is_joined_once_every_device_has_come_to_it(of_the_other, obstacle) -> None:
    """The other rank has issued 10, and its device may compute what comes before it."""
    calls = [call(10 + n, done_ns) for n, done_ns in enumerate(of_the_other)]
    found = {0: dump(0, [call(10, 0)]), 1: dump(1, calls)}
    judgement = judge(standings_of(found), 30 * SECOND)
    assert judgement.obstacles[0] == obstacle
    assert judgement.is_stuck == (obstacle == "joined")


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    for module in (live_state, state_file):
        monkeypatch.setattr(module, "memory_folders", lambda: iter([tmp_path]))
    made = Recorder(lambda: True)
    assert made.arm()
    yield made
    made.in_flight.state.close()


def opened(recorder: Recorder, **fields: str) -> tuple[Header, LiveState]:
    """Open the live state of a rank that is this process."""
    who = header(world_size=1, pid=os.getpid(), started_monotonic_ns=clock(), **fields)
    live = recorder.in_flight.state
    assert live.open(who, lambda definition: definition) == ""
    live.define(group(world_size=1))
    return who, live


def waiting_thread() -> tuple[torch.futures.Future[None], threading.Thread]:
    """Begin a thread that waits until the future has a result."""
    future = torch.futures.Future[None]()
    waits = threading.Thread(target=future.wait)
    waits.start()
    return future, waits


def test_a_device_is_asked_only_while_its_rank_makes_no_progress(recorder: Recorder) -> None:
    asked: list[int] = []
    recorder.in_flight.device = SimpleNamespace(entered=lambda: asked.append(1) or [])  # type: ignore[assignment]
    calls = Calls(recorder, lambda error: None)
    calls.note_held(NOW, is_quiet=False)
    assert not asked
    calls.note_held(NOW, is_quiet=True)
    assert asked


def test_a_device_that_comes_no_further_is_noticed(tmp_path: Path, recorder: Recorder) -> None:
    record = Collective(1, 1, 1, 4, 1, clock(), "all_reduce", step=3)
    entered = [record]
    recorder.in_flight.device = SimpleNamespace(entered=lambda: list(entered))  # type: ignore[assignment]
    who, live = opened(recorder, device="cuda")
    live.issue(1, 1, 1, live.words["all_reduce"], 4, record.issue_ns, 0, 3, UNFOLLOWED, 1)
    said: queue.Queue[str] = queue.Queue()
    watchdog = Watchdog(
        *(recorder, who, Config(hang_after=2.0), tmp_path, as_it_is, memory, said.put)
    )
    watchdog.start()
    try:
        text = said.get(timeout=60)
        stuck = "stuck: rank 0 is in a collective that does not complete (the oldest: "
        assert text.startswith(f"{stuck}all_reduce 1 of world, issued ")
        assert live.path is not None
        assert [one.id for one in read_state(live.path).in_flight] == [1]
        entered.clear()
        recorder.progress.steps += 1
        while read_state(live.path).in_flight:
            pass
    finally:
        watchdog.stop()
    assert recorder.failures == {}


def test_a_send_in_flight_counts_only_where_its_thread_waits(
    tmp_path: Path, recorder: Recorder
) -> None:
    """The first one is that of a thread that goes on: nobody waits for it."""
    who, live = opened(recorder)
    future, waits = waiting_thread()
    issue_ns = clock() - 3 * SECOND
    works = [Pending(), Pending()]
    calls = zip(("send", "recv"), (threading.get_ident(), waits.ident), works, strict=True)
    for number, (op, thread, work) in enumerate(calls, 1):
        record = Collective(number, 1, 1, 4, 1, issue_ns + number, op, peer=0, step=3)
        record.thread, record.pending_ns = thread or 0, issue_ns
        recorder.in_flight.works[id(work)] = (work, record)
        where = 1 | 1 << state_file.PEER_SHIFT
        live.issue(number, -1, where, live.words[op], 4, record.issue_ns, 0, 3, 0, record.thread)
    recorder.in_flight.poll()
    said: queue.Queue[str] = queue.Queue()
    watchdog = Watchdog(
        *(recorder, who, Config(hang_after=2.0), tmp_path, as_it_is, memory, said.put)
    )
    watchdog.start()
    try:
        assert "(the oldest: recv 1 of world, issued " in said.get(timeout=60)
        assert live.path is not None
        assert [one.op for one in read_state(live.path).in_flight] == ["recv"]
    finally:
        watchdog.stop()
        future.set_result(None)
        waits.join()
    assert recorder.failures == {}


def test_a_receive_that_a_thread_waits_for_is_shown_long_before_an_inquiry(
    tmp_path: Path, recorder: Recorder
) -> None:
    """The run may be killed by then."""
    who, live = opened(recorder)
    future, waits = waiting_thread()
    work, record = Pending(), Collective(1, 1, 1, 4, 1, clock(), "recv", peer=0, step=3)
    record.thread = waits.ident or 0
    recorder.in_flight.works[id(work)] = (work, record)
    where = 1 | 1 << state_file.PEER_SHIFT
    live.issue(
        1, -1, where, live.words["recv"], 4, record.issue_ns, 0, 3, UNFOLLOWED, record.thread
    )
    watchdog = Watchdog(
        *(recorder, who, Config(hang_after=1000.0), tmp_path, as_it_is, memory, str)
    )
    watchdog.start()
    try:
        assert live.path is not None
        while not read_state(live.path).in_flight:
            threading.Event().wait(0.01)
        recorder.in_flight.waited(work, record.issue_ns, clock(), finished=True)
        future.set_result(None)
        recorder.progress.steps += 1
        while read_state(live.path).in_flight:
            threading.Event().wait(0.01)
        [call] = read_state(live.path).calls
        assert call.done_ns == record.done_ns
    finally:
        watchdog.stop()
        waits.join()
    assert recorder.failures == {}


class Pending:
    """A Work that its backend calls complete only once it is waited for."""

    def is_completed(self) -> bool:
        return False


def test_a_send_that_was_received_is_not_waited_for() -> None:
    def of_pair(op: str, done_ns: int) -> StateCall:
        given = {"op": op, "peer": 1 - (op == "recv"), "is_pair": True}
        return msgspec.structs.replace(call(1, done_ns), **given)

    for done_ns, obstacles in ((0, {0: "joined", 1: "joined"}), (NOW, {})):
        ranks = {0: dump(0, [of_pair("send", 0)]), 1: dump(1, [of_pair("recv", done_ns)])}
        assert judge(standings_of(ranks), 30 * SECOND).obstacles == obstacles


def as_it_is(definition: Any) -> Any:
    return definition


def memory(at: str, step: int) -> MemorySample:
    return MemorySample(at, clock(), step)
