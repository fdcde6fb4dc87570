"""Ranks follow one request with the same steps, and tell each other of what happens to one."""

from __future__ import annotations

import errno
import itertools
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
from torch.distributed import TCPStore

from dsprof.diagnosis.build import diagnose
from dsprof.files import notes
from dsprof.recording.capture.announcements import NodeMemory
from dsprof.recording.capture.thread import Capture
from dsprof.recording.group_store import connect
from dsprof.trace.dumps.kept_states import remove_stale
from dsprof.trace.reader import read_trace
from dsprof.trace.rolling.alarms import Alarm
from dsprof.trace.rolling.capture import LEAST_PAUSE_S, Captured, agree, agreed, ask
from dsprof.trace.rolling.writer import RollingWriter
from dsprof.trace.run import find_run
from dsprof.trace.schema import Header
from dsprof.trace.scope import clock
from tests.factories.month import FastMotion
from tests.factories.stale_folder import stale_folder

AT = (100, 103, 103, 103)
"""The steps in which ranks are."""


@pytest.fixture
def ranks(tmp_path: Path) -> list[tuple[Capture, RollingWriter]]:
    """The two ranks of a node."""
    return [_rank(tmp_path, rank) for rank in (0, 1)]


def _rank(folder: Path, rank: int, node: int = 0) -> tuple[Capture, RollingWriter]:
    memory = folder.parent / f"{folder.name}-memory{node}"
    return _begun(folder, rank, memory)


def _begun(
    folder: Path, rank: int, memory: Path, run: str = "run"
) -> tuple[Capture, RollingWriter]:
    """Begin a rank on the node that has this memory."""
    for path in (folder, memory):
        path.mkdir(exist_ok=True)
    header = Header(1, run, rank, 4, "host", 1, time.time_ns(), clock(), local_rank=rank % 2)
    writer = FastMotion(folder, 10**6, rank).writer

    def fail(_: str, error: BaseException) -> None:
        raise error

    with patch("dsprof.recording.capture.announcements.memory_folders", lambda: iter([memory])):
        capture = Capture(header, folder, writer, lambda: AT[rank], fail)
    capture._begin()
    return capture, writer


def test_without_shared_memory_nothing_is_written_where_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with patch("dsprof.recording.capture.announcements.memory_folders", lambda: iter(())):
        node = NodeMemory("run", tmp_path)
    assert not node.propose(Captured("a" * 16, 7, 9))
    assert (node.announced(), [*tmp_path.iterdir()]) == (None, [])


@pytest.fixture
def store() -> Iterator[TCPStore]:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with patch("dsprof.recording.capture.announcements.default_store", lambda: server):
        yield server


def in_turn(*captures: Capture) -> None:
    """Let ranks look once each, in this order."""
    for capture in captures:
        capture._tick()


def kept(writer: RollingWriter) -> list[range]:
    return [one.range for one in writer.wanted]


def test_all_ranks_keep_the_same_steps_once(
    tmp_path: Path, ranks: list[tuple[Capture, RollingWriter]]
) -> None:
    ask(tmp_path, 20)
    for _ in range(3):
        for capture, _ in ranks:
            capture._tick()
    assert [kept(writer) for _, writer in ranks] == [[range(105, 125)]] * 2


def test_a_request_is_found_on_a_file_system_that_remembers_what_was_not_there(
    tmp_path: Path, ranks: list[tuple[Capture, RollingWriter]]
) -> None:
    capture, writer = ranks[0]
    with stale_folder(tmp_path):
        capture._tick()
        ask(tmp_path, 20)
        in_turn(*[capture] * 6)
    assert kept(writer) == [range(105, 125)]


def test_a_rank_without_a_leader_leads(tmp_path: Path) -> None:
    capture, writer = _rank(tmp_path, 1)
    ask(tmp_path, 20)
    in_turn(*[capture] * 30)
    assert kept(writer) == []
    capture._tick()
    assert kept(writer) == [range(108, 128)]


def test_a_rank_with_a_leader_does_not_lead(
    tmp_path: Path, ranks: list[tuple[Capture, RollingWriter]]
) -> None:
    capture, writer = ranks[1]
    ask(tmp_path, 20)
    with patch.object(capture._node, "renewed_ns", itertools.count().__next__):
        in_turn(*[capture] * 40)
    assert kept(writer) == []


def test_a_rank_whose_leader_was_killed_leads(
    tmp_path: Path, ranks: list[tuple[Capture, RollingWriter]]
) -> None:
    capture, writer = ranks[1]
    ask(tmp_path, 20)
    in_turn(*[capture] * 32)
    assert kept(writer) == [range(108, 128)]


def test_steps_are_ahead_by_the_pace_of_the_last_second(
    tmp_path: Path, ranks: list[tuple[Capture, RollingWriter]]
) -> None:
    capture, writer = ranks[0]
    capture._tick()
    ask(tmp_path, 20)
    with patch.object(capture, "_step", lambda: 150):
        capture._tick()
    assert kept(writer) == [range(650, 670)]


def test_a_request_so_soon_after_another_waits(
    tmp_path: Path, ranks: list[tuple[Capture, RollingWriter]]
) -> None:
    capture, writer = ranks[0]
    for steps in (20, 30):
        ask(tmp_path, steps)
        capture._tick()
    assert kept(writer) == [range(105, 125)]
    with patch("dsprof.recording.capture.thread.clock", lambda: clock() + LEAST_PAUSE_S * 10**9):
        capture._tick()
    assert kept(writer) == [range(105, 125), range(105, 135)]


def test_a_slow_step_of_one_rank_is_kept_on_the_others(
    ranks: list[tuple[Capture, RollingWriter]],
) -> None:
    (_, quick), (capture, slow) = ranks
    slow.alarms.add(Alarm(90, "slow", "took 3 times the usual time"))
    in_turn(capture, ranks[0][0], capture)
    assert kept(slow) == kept(quick) == [range(86, 98)]
    assert quick.wanted[0].cause == "step 90 of rank 1: took 3 times the usual time"


def test_what_lasts_is_kept_on_all_ranks_from_a_future_step(
    ranks: list[tuple[Capture, RollingWriter]],
) -> None:
    (_, first), (capture, growing) = ranks
    growing.alarms.add(Alarm(90, "memory", "host memory grew to 1.1 times what it was"))
    in_turn(capture, ranks[0][0], capture)
    assert kept(growing) == kept(first) == [range(108, 140)]


def test_alarms_are_rare(ranks: list[tuple[Capture, RollingWriter]]) -> None:
    for capture, writer in ranks * 2:
        writer.alarms.add(Alarm(90, "slow", ""))
        capture._tick()
    assert [kept(writer) for _, writer in ranks] == [[range(86, 98)]] * 2


def test_a_slow_step_does_not_silence_an_alarm_of_another_kind(
    ranks: list[tuple[Capture, RollingWriter]],
) -> None:
    (capture, writer), (other, _) = ranks
    for alarm in (Alarm(90, "slow", ""), Alarm(91, "memory", ""), Alarm(92, "memory", "")):
        writer.alarms.add(alarm)
        in_turn(capture, other)
    assert [kept(writer) for _, writer in ranks] == [[range(86, 98), range(105, 137)]] * 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_slow_step_displaces_no_alarm_that_waits(
    ranks: list[tuple[Capture, RollingWriter]], rank: int
) -> None:
    """Also while slow steps are silent: memory that has grown raises no second alarm."""
    capture, writer = ranks[rank]
    for step in (80, 90):
        for alarm in (
            Alarm(step, "memory", ""),
            Alarm(step, "behind", ""),
            Alarm(step, "slow", ""),
        ):
            writer.alarms.add(alarm)
    in_turn(*[capture, ranks[0][0]] * 4, ranks[1][0])
    writer.alarms.add(Alarm(99, "slow", ""))
    in_turn(capture)
    for _, writer in ranks:
        assert [one.id.partition("-")[0] for one in writer.wanted] == ["memory", "behind", "slow"]
        assert writer.wanted[2].range == range(76, 88)  # of the first slow step


def test_a_signal_on_any_rank_asks_all(ranks: list[tuple[Capture, RollingWriter]]) -> None:
    captures = [capture for capture, _ in ranks]
    for capture in captures[1:]:
        capture._signal = signalled("SIGUSR2")
    in_turn(*captures[::-1], *captures)
    assert [kept(writer) for _, writer in ranks] == [[range(108, 140)]] * 2
    assert ranks[0][1].wanted[0].cause == "SIGUSR2 on rank 1"


def test_a_signal_to_all_ranks_asks_once(
    tmp_path: Path, ranks: list[tuple[Capture, RollingWriter]]
) -> None:
    ranks.append(_rank(tmp_path, 3))
    captures = [capture for capture, _ in ranks]
    for capture in captures[1:]:
        capture._signal = signalled("SIGUSR2")
    in_turn(*captures[::-1], *captures * 2)
    assert [kept(writer) for _, writer in ranks] == [[range(108, 140)]] * 3


def signalled(name: str) -> Mock:
    """Return a signal that has come."""
    signal = Mock(take=Mock(side_effect=itertools.chain([True], itertools.repeat(False))))
    signal.name = name
    return signal


def test_ranks_of_a_node_may_notice_different_things_at_once(
    tmp_path: Path, ranks: list[tuple[Capture, RollingWriter]]
) -> None:
    ranks.append(_rank(tmp_path, 3))
    captures = [capture for capture, _ in ranks]
    for (_, writer), kind in zip(ranks, ("slow", "memory", "behind"), strict=True):
        writer.alarms.add(Alarm(90, kind, ""))
    in_turn(*captures[::-1] * 3)
    kinds = [{one.id.partition("-")[0] for one in writer.wanted} for _, writer in ranks]
    assert kinds == [{"slow", "memory", "behind"}] * 3


def test_a_rank_that_looks_late_misses_no_announcement(
    tmp_path: Path, ranks: list[tuple[Capture, RollingWriter]]
) -> None:
    (leader, writer), (late, later) = ranks
    ask(tmp_path, 20)
    leader._tick()
    writer.alarms.add(Alarm(90, "slow", ""))
    in_turn(leader, late)
    assert kept(writer) == kept(later) == [range(105, 125), range(86, 98)]


def test_a_node_that_looks_late_misses_no_announcement(
    tmp_path: Path, store: TCPStore, ranks: list[tuple[Capture, RollingWriter]]
) -> None:
    leader, writer = ranks[0]
    far, later = _rank(tmp_path / "elsewhere", 2, node=1)
    ask(tmp_path, 20)
    leader._tick()
    for kind in ("memory", "slow"):
        writer.alarms.add(Alarm(90, kind, ""))
        leader._tick()
    in_turn(*[far] * 5)
    assert kept(later) == kept(writer)
    assert len(kept(later)) == 3


def test_only_one_rank_of_a_node_asks_the_store(tmp_path: Path, store: TCPStore) -> None:
    with patch("dsprof.recording.capture.announcements.connect", Mock(wraps=connect)) as connected:
        nodes = [[_rank(tmp_path, 2 * node + rank, node) for rank in (0, 1)] for node in (0, 1)]
        for _, writer in [*nodes[0], *nodes[1]]:
            writer.alarms.add(Alarm(90, "slow", ""))
        for _ in range(6):
            in_turn(*(capture for capture, _ in [*nodes[1], *nodes[0]]))
    assert connected.call_count == 2
    assert [kept(writer) for node in nodes for _, writer in node] == [[range(86, 98)]] * 4


def test_nodes_learn_of_an_alarm_from_the_store(
    tmp_path: Path, store: TCPStore, ranks: list[tuple[Capture, RollingWriter]]
) -> None:
    far = [_rank(tmp_path, rank, node=1) for rank in (2, 3)]
    for capture, writer in (ranks[0], far[0]):  # both before either looks at the store
        writer.alarms.add(Alarm(90, "slow", ""))
        capture._tick()
    for capture, _ in [*ranks, *far]:
        for _ in range(5):
            capture._tick()
    causes = {writer.wanted[0].cause for _, writer in [*ranks, *far]}
    assert causes == {"step 90 of rank 0: "}
    assert [len(writer.wanted) for _, writer in [*ranks, *far]] == [1] * 4


def test_nodes_without_a_store_learn_of_it_from_the_folder(
    tmp_path: Path, ranks: list[tuple[Capture, RollingWriter]]
) -> None:
    (capture, near), (other, far) = ranks[0], _rank(tmp_path, 2, node=1)
    near.alarms.add(Alarm(90, "slow", ""))
    near.alarms.add(Alarm(95, "memory", ""))
    capture._tick()
    for _ in range(5):
        other._tick()
    assert kept(far) == kept(near) == [range(86, 98), range(105, 137)]


@contextmanager
def full(memory: Path) -> Iterator[None]:
    """Have the memory of a node refuse data."""

    def put(path: Path, data: bytes, *, is_first: bool = False) -> bool:
        if path.parent == memory:
            raise OSError(errno.ENOSPC, "No space left on device")
        return notes.put(path, data, is_first=is_first)

    with patch("dsprof.recording.capture.announcements.notes", Mock(wraps=notes, put=put)):
        yield


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    """The memory of the node of `ranks`."""
    return tmp_path.parent / f"{tmp_path.name}-memory0"


def test_a_request_waits_while_the_memory_of_the_node_is_full(
    tmp_path: Path, memory: Path, ranks: list[tuple[Capture, RollingWriter]]
) -> None:
    captures = [capture for capture, _ in ranks]
    request = ask(tmp_path, 20)
    with full(memory):
        in_turn(*captures * 3)
    assert agreed(tmp_path, request) is None  # it would say that all ranks keep them
    assert [kept(writer) for _, writer in ranks] == [[], []]
    in_turn(*captures)
    assert [kept(writer) for _, writer in ranks] == [[range(105, 125)]] * 2


def test_an_alarm_is_announced_once_the_memory_of_the_node_has_room(
    memory: Path, ranks: list[tuple[Capture, RollingWriter]]
) -> None:
    captures = [capture for capture, _ in ranks]
    ranks[0][1].alarms.add(Alarm(90, "memory", ""))
    with full(memory):
        in_turn(*captures * 3)
    in_turn(*captures)
    assert [kept(writer) for _, writer in ranks] == [[range(105, 137)]] * 2


def test_a_rank_that_starts_later_leaves_the_announcements_of_a_running_job(
    memory: Path, ranks: list[tuple[Capture, RollingWriter]]
) -> None:
    (leader, _), (other, _) = ranks
    (announced,) = memory.glob("*-capture.state")
    os.utime(announced, (0, 0))  # it was announced a month ago
    leader._tick()
    remove_stale(memory)
    assert other._node.announced() == []
    announced.unlink()  # while the job was stopped
    leader._tick()
    assert other._node.announced() == []


def test_a_run_forgets_at_its_end_what_all_nodes_have_seen(
    tmp_path: Path, ranks: list[tuple[Capture, RollingWriter]]
) -> None:
    (capture, writer), (far, _) = ranks
    writer.alarms.add(Alarm(90, "slow", ""))
    capture._tick()
    [told] = tmp_path.glob(".alarm-*.json")
    capture.stop()
    assert told.exists()  # other nodes look every 5 s
    os.utime(told, (time.time() - 60,) * 2)
    far._leads = False
    far.stop()
    assert told.exists()
    capture.stop()
    assert not told.exists()


def test_a_store_that_is_stopped_holds_one_thread(
    ranks: list[tuple[Capture, RollingWriter]], store: TCPStore
) -> None:
    capture, writer = ranks[0]
    capture._nodes._connection = None
    before, goes_on = {*threading.enumerate()}, threading.Event()

    def connect(_: TCPStore) -> None:
        goes_on.wait(30)
        raise RuntimeError("the connection was closed")

    with (
        patch("dsprof.recording.capture.announcements.connect", connect),
        patch("dsprof.recording.group_store.PATIENCE_S", 0.001),
    ):
        for _ in range(100):
            writer.alarms.add(Alarm(90, "slow", ""))
            capture._tick()
        held = {*threading.enumerate()} - before
        goes_on.set()
    assert len(held) == 1
    assert kept(writer) == [range(86, 98)]


def test_a_store_that_fails_is_asked_ever_more_rarely(
    ranks: list[tuple[Capture, RollingWriter]], store: TCPStore
) -> None:
    capture, _ = ranks[0]
    capture._nodes._connection = None
    with patch(
        "dsprof.recording.capture.announcements.connect", Mock(side_effect=OSError)
    ) as connected:
        for _ in range(1000):
            capture._tick()
    assert connected.call_count == 8  # after 5, 15, 35, 75, 155, 315, 635 and 955 ticks


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("has_store", [False, True])
def test_what_a_killed_run_has_announced_is_not_followed(
    tmp_path: Path, request: pytest.FixtureRequest, node: int, has_store: bool
) -> None:
    if has_store:  # it outlives the run: that of an agent, or of a group that is made again
        request.getfixturevalue("store")
    before, killed = _rank(tmp_path, 0)
    killed.alarms.add(Alarm(90, "slow", ""))
    before._tick()
    (leader, first), (other, second) = (_rank(tmp_path, 2 * node + rank, node) for rank in (0, 1))
    in_turn(*[leader, other] * 5)
    assert kept(first) == kept(second) == []
    second.alarms.add(Alarm(90, "slow", ""))
    in_turn(other, leader, other)
    assert kept(first) == kept(second) == [range(86, 98)]  # the same step


@pytest.mark.parametrize("is_answered", [False, True])
def test_what_an_earlier_run_was_asked_for_is_not_followed(
    tmp_path: Path, is_answered: bool
) -> None:
    ahead_s = time.time() + 600
    with patch("time.time", lambda: ahead_s):  # the clock of the terminal
        request = ask(tmp_path, 20)
    if is_answered:
        agree(tmp_path, Captured(request.id, 100, 20))
    capture, writer = _rank(tmp_path, 0)
    with (
        patch("dsprof.recording.capture.thread._QUIET_NS", 0),
        patch.object(capture, "_is_soon", bool),
    ):
        for step in range(100):
            writer.alarms.add(Alarm(step, "slow", ""))
            capture._tick()
    assert {one.why for one in writer.wanted} == {"alarm"}


def test_a_request_from_a_clock_that_is_behind_is_followed(
    tmp_path: Path, ranks: list[tuple[Capture, RollingWriter]]
) -> None:
    with patch("time.time", lambda: 0.0):
        ask(tmp_path, 20)
    ranks[0][0]._tick()
    assert kept(ranks[0][1]) == [range(105, 125)]


def test_what_a_killed_run_has_proposed_is_not_followed(tmp_path: Path) -> None:
    before, killed = _rank(tmp_path, 1)
    killed.alarms.add(Alarm(90, "slow", ""))
    before._tick()
    leader, writer = _rank(tmp_path, 0)
    leader._tick()
    assert kept(writer) == []


def test_a_store_that_answers_late_has_no_news_of_before(tmp_path: Path, store: TCPStore) -> None:
    before, killed = _rank(tmp_path, 0)
    killed.alarms.add(Alarm(5000, "slow", ""))
    before._tick()
    with patch("dsprof.recording.capture.announcements.connect", Mock(side_effect=OSError)):
        capture, writer = _rank(tmp_path, 2, node=1)
    for _ in range(20):
        capture._tick()
    assert kept(writer) == []
    killed.alarms.add(Alarm(5010, "memory", ""))
    before._tick()
    for _ in range(10):
        capture._tick()
    assert kept(writer) == [range(105, 137)]


def test_two_runs_of_a_node_do_not_hear_each_other(tmp_path: Path) -> None:
    runs = [_begun(tmp_path / job, 0, tmp_path / "memory") for job in ("one", "two")]
    ask(tmp_path / "one", 20)
    for capture, _ in runs * 2:
        capture._tick()
    assert [kept(writer) for _, writer in runs] == [[range(105, 125)], []]


def _two_runs(folder: Path, keys: tuple[str, str]) -> list[tuple[Capture, RollingWriter]]:
    """Begin the first rank of two runs on one node, whose ranks meet in different places."""
    runs = []
    for port, key in enumerate(keys, 29500):
        where = "dsprof.recording.group_store.store_address"
        with patch(where, lambda port=port: str(port)):
            runs.append(_begun(folder, 0, folder / "memory", key))
    return runs


KEYS = pytest.mark.parametrize("keys", [("old", "new"), ("same", "same")])


@KEYS
def test_only_the_run_that_is_asked_answers(tmp_path: Path, keys: tuple[str, str]) -> None:
    runs = _two_runs(tmp_path, keys)
    request = ask(tmp_path, 20, [runs[1][0]._header])
    for capture, _ in runs * 2:
        capture._tick()
    assert [kept(writer) for _, writer in runs] == [[], [range(105, 125)]]
    assert agreed(tmp_path, request) is not None


@KEYS
def test_what_a_run_announces_is_not_followed_by_another(
    tmp_path: Path, keys: tuple[str, str]
) -> None:
    runs = _two_runs(tmp_path, keys)
    runs[0][1].alarms.add(Alarm(90, "slow", ""))
    for capture, _ in runs * 10:
        capture._tick()
    assert [len(kept(writer)) for _, writer in runs] == [1, 0]


def test_nothing_is_announced_where_no_other_node_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    capture, writer = _rank(tmp_path, 0)
    writer.alarms.add(Alarm(90, "slow", ""))
    capture._tick()
    assert len(kept(writer)) == 1
    assert not [*tmp_path.glob(".alarm*")]


def test_steps_of_the_past_are_kept_while_their_details_are_there(tmp_path: Path) -> None:
    run = FastMotion(tmp_path, 2_000_000)
    with run.running():
        run.train(600)
        while run.writer._step < 590:
            pass
        run.writer.wanted.append(Captured("id", 550, 10, cause="dsprof capture"))
        run.train(3000)
    kept = read_trace(tmp_path / "trace.rank00000.json").kept
    assert kept.keys() >= {*range(550, 560)}
    assert {kept[step].cause for step in range(550, 560)} == {"dsprof capture"}


def test_a_report_names_what_happened_and_all_ranks_have_its_steps(
    tmp_path: Path, ranks: list[tuple[Capture, RollingWriter]]
) -> None:
    runs = [FastMotion(tmp_path, 2_000_000, rank) for rank in (0, 1)]
    runs[1].slow = {300: 4.0}
    with runs[0].running(), runs[1].running():
        for run, (capture, _) in zip(runs, ranks, strict=True):
            run.train(310)
            capture._writer = run.writer
        while not runs[1].writer.alarms._waiting or runs[0].writer._step < 309:
            pass
        in_turn(*(capture for capture, _ in ranks[::-1] * 2))
    around = diagnose(find_run([tmp_path])).history.kept[0]
    assert (around.step, around.steps, around.ranks, around.late_ranks) == (296, 12, 2, [])
    assert re.match(r"step 300 of rank 1: took [34]\S* times the usual time", around.cause)
