"""The live state holds what is in flight, whatever came after it, and goes when it should."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsprof.environment.machine import boot_id
from dsprof.environment.processes import pid_namespace
from dsprof.errors import TraceError
from dsprof.recording import this_process
from dsprof.recording.recorder import live_state
from dsprof.recording.recorder.hot_state import HotState
from dsprof.recording.recorder.live_state import Kinds, LiveState
from dsprof.trace.dumps import state_file
from dsprof.trace.dumps.state_file import (
    CALLS,
    OLD_CALLS,
    PEER_SHIFT,
    UNFOLLOWED,
    RankState,
    read_state,
)
from dsprof.trace.schema import Group, Header, Site
from dsprof.trace.scope import Scope, clock
from tests.factories.trace import header

THREAD = 77


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands in for /dev/shm."""
    for module in (live_state, state_file):
        monkeypatch.setattr(module, "memory_folders", lambda: iter([tmp_path]))
    return tmp_path


def own_header(**fields: object) -> Header:
    return header(rank=1, pid=os.getpid(), started_monotonic_ns=clock(), **fields)


def writers_in_c(words: memoryview) -> tuple[live_state.Issue, live_state.Done, live_state.Close]:
    return live_state.writers_in_c(HotState(), words)


@pytest.fixture(params=[live_state.writers, writers_in_c], ids=["Python", "C"])
def state(memory: Path, request: pytest.FixtureRequest) -> Iterator[LiveState]:
    """A state that is written in Python, or in C, which make compiles for the tests."""
    live = LiveState()
    live.make_writers = request.param
    assert live.open(own_header(), lambda definition: definition) == ""
    yield live
    live.close()


def issue(live: LiveState, number: int, seq: int, *, group: int = 1, done_ns: int = 0) -> None:
    kind = Kinds(live.words, "all_reduce")["bfloat16"]
    live.issue(number, seq, group, kind, 64, 1000 + number, 3, 5, done_ns, THREAD)


def read(live: LiveState) -> RankState:
    assert live.path is not None
    return read_state(live.path)


def test_a_call_is_read_as_it_was_issued(state: LiveState) -> None:
    state.define(Group(id=4, key="k", label="experts", ranks=[0, 1]))
    state.define(Site(id=3, file="train.py", line=9, function="main"))
    kind = Kinds(state.words, "send")["float32"]
    state.issue(9, -2, 4 | 1 << PEER_SHIFT, kind, 64, 1000, 3, 5, 0, THREAD)
    state.beat(Scope(5, 0, "backward"))
    found = read(state)
    (call,) = found.in_flight
    assert (call.id, call.seq, call.group, call.peer, call.is_pair) == (9, 2, 4, 0, True)
    assert (call.op, call.dtype, call.nbytes, call.issue_ns) == ("send", "float32", 64, 1000)
    assert (call.site, call.step, call.thread) == (3, 5, THREAD)
    assert found.groups[4].label == "experts"
    assert found.sites[3].line == 9
    assert (found.header.rank, found.header.run_key) == (1, "run-1")
    assert (found.step, found.phase) == (5, "backward")
    assert found.header.started_monotonic_ns < found.beat_ns <= clock()


def test_a_call_that_is_done_is_no_longer_in_flight(state: LiveState) -> None:
    for number in (1, 2, 3):
        issue(state, number, number)
    state.done(1, 5000)
    state.done(3, -6000)
    assert [call.id for call in read(state).in_flight] == [2]
    assert [call.done_ns for call in read(state).calls] == [5000, 0, -6000]


def test_a_call_in_flight_outlives_all_that_come_after_it(state: LiveState) -> None:
    issue(state, 1, 1, group=2)
    for number in range(2, 3 * CALLS):
        issue(state, number, number)
        state.done(number, 5000)
    assert [call.id for call in read(state).in_flight] == [1]
    state.done(1, 9000)
    assert read(state).in_flight == []


def test_of_too_many_the_oldest_outlive_and_the_others_are_counted(state: LiveState) -> None:
    for number in range(1, CALLS + OLD_CALLS + 6):
        issue(state, number, number)
    found = read(state)
    assert [call.id for call in found.in_flight[:OLD_CALLS]] == list(range(1, OLD_CALLS + 1))
    assert found.lost == 5


def test_a_place_of_an_old_call_that_is_done_is_used_again(state: LiveState) -> None:
    for number in range(1, CALLS + OLD_CALLS + 1):
        issue(state, number, number)
    state.done(2, 5000)
    issue(state, CALLS + OLD_CALLS + 1, 999)
    found = read(state)
    assert OLD_CALLS + 1 in {call.id for call in found.in_flight}
    assert found.lost == 0


def test_the_last_completed_number_of_a_group_outlives_its_calls(state: LiveState) -> None:
    issue(state, 1, 41, group=2, done_ns=UNFOLLOWED)
    state.issue(2, -7, 3, 0, 64, 1000, 3, 5, 4000, THREAD)
    for number in range(3, 2 * CALLS):
        issue(state, number, number)
        state.done(number, 5000)
    assert read(state).passed == {1: CALLS - 1, 2: 41}


def test_what_cannot_be_described_is_left_to_the_trace(memory: Path) -> None:
    def broken(definition: object) -> object:
        raise RuntimeError("dictionary changed size during iteration")

    live = LiveState()
    assert live.open(own_header(), broken) == ""
    live.define(Site(id=3, file="train.py", line=9, function="main"))
    assert read(live).sites == {}
    live.close()


def test_it_is_the_users_own_and_no_program_cuts_it_by_mistake(state: LiveState) -> None:
    path = state.path
    assert path is not None
    assert (path.stat().st_mode & 0o777, path.stat().st_size) == (0o400, 96 << 10)
    state.close()
    assert not path.exists()
    issue(state, 1, 1)
    state.done(1, 2)
    state.define(Site(id=1, file="a", line=1, function="f"))


def test_a_file_that_was_removed_is_there_again_with_the_next_sign_of_life(
    state: LiveState,
) -> None:
    issue(state, 1, 1)
    for number in (2, 3):  # whoever removes it may do so again
        assert state.path is not None
        state.path.unlink()
        issue(state, number, number)
        state.beat(Scope(number, 0, "backward"))
        found = read(state)
        assert [call.id for call in found.in_flight] == [*range(1, number + 1)]
        assert found.step == number
    state.done(3, 5000)
    state.beat(Scope(4, 0, "backward"))
    assert [call.id for call in read(state).in_flight] == [1, 2]
    path = state.path
    assert path is not None
    state.close()
    state.beat(Scope(5, 0, "backward"))
    assert [*path.parent.iterdir()] == []


def test_a_forked_child_writes_nothing(state: LiveState) -> None:
    child = os.fork()
    if not child:
        state.forget()
        issue(state, 1, 1)
        state.beat(Scope(3, 0, ""))
        state.define(Site(id=1, file="a", line=1, function="f"))
        os._exit(0)
    os.waitpid(child, 0)
    found = read(state)
    assert (found.calls, found.sites, found.step) == ([], {}, -1)


def test_full_memory_is_noticed_when_the_file_is_made(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    live = LiveState()
    why = live.open(own_header(), lambda definition: definition)
    assert why == f"{memory} cannot be written: No space left on device"
    assert list(memory.iterdir()) == []
    issue(live, 1, 1)


def test_no_link_is_followed(memory: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    target = tmp_path_factory.mktemp("else") / "target"
    target.write_bytes(b"precious")
    mine = own_header()
    name = state_file.state_name(mine)
    (memory / name).symlink_to(target)
    live = LiveState()
    assert live.open(mine, lambda definition: definition) == ""
    assert target.read_bytes() == b"precious"
    live.close()
    (memory / name).symlink_to(target)
    with pytest.raises(TraceError, match="cannot be read"):
        read_state(memory / name)


def test_processes_of_one_number_in_two_containers_keep_a_state_each(memory: Path) -> None:
    states = [LiveState(), LiveState()]
    headers = [own_header(pid_namespace=number, boot_id=boot_id()) for number in (36, 48)]
    for state, one in zip(states, headers, strict=True):
        assert state.open(one, lambda definition: definition) == ""
    found = [state_file.find_state(one, memory) for one in headers]
    assert [one.header.pid_namespace for one in found if one] == [36, 48]
    states[1].close()
    assert state_file.find_state(headers[0], memory)
    states[0].close()


def test_a_child_that_is_the_same_rank_as_its_parent_is_known_by_its_state(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(this_process, "_parent", lambda: SimpleNamespace(pid=os.getpid()))
    monkeypatch.setattr(this_process, "memory_folders", lambda: [memory])
    monkeypatch.setattr(this_process, "on_monotonic_ns", lambda _: clock())  # it began after it
    live, mine = LiveState(), own_header(pid_namespace=pid_namespace())
    assert live.open(mine, lambda definition: definition) == ""
    found = [this_process.repeats_parent(rank, mine.world_size) for rank in (0, 1, 2)]
    assert found == [False, True, False]
    assert not this_process.repeats_parent(1, mine.world_size + 1)  # of another job
    live.close()


def test_a_call_that_is_just_being_written_is_passed_over(state: LiveState) -> None:
    issue(state, 1, 1)
    issue(state, 2, 2)
    assert state.path is not None
    data = bytearray(state.path.read_bytes())
    struct.pack_into("=q", data, 8 * (state_file.RING + 2 * 10 + state_file.THREAD), 0)
    copy = state.path.with_name("torn.state")
    copy.write_bytes(data)
    assert [call.id for call in read_state(copy).calls] == [1]


def test_a_file_that_somebody_else_made_does_no_harm(state: LiveState) -> None:
    for number in range(1, 50):
        issue(state, number, number)
    assert state.path is not None
    whole = state.path.read_bytes()
    copy = state.path.with_name("hostile.state")
    starts = (0, state_file.OLD, state_file.PASSED, state_file.RING + 10)
    for at in (8 * (start + word) for start in starts for word in range(13)):
        for word in (-1, 1 << 62, -(1 << 63), (1 << 63) - 1):
            data = bytearray(whole)
            struct.pack_into("=q", data, at, word)
            copy.write_bytes(data)
            try:
                found = read_state(copy)
            except TraceError:
                continue
            assert found.header.rank == 1
            assert len(found.calls) <= CALLS + OLD_CALLS
    for data in (b"", whole[:-1], whole + b"x", bytes(len(whole)), os.urandom(len(whole))):
        copy.write_bytes(data)
        with pytest.raises(TraceError):
            read_state(copy)


@pytest.mark.parametrize(
    ("ranks", "known"),
    [
        (list(range(5, 2053, 2)), list(range(5, 2053, 2))),
        ([0, *range(2, 1025)], []),
    ],
)
def test_a_large_group_is_known_if_its_ranks_are_regular(
    state: LiveState, ranks: list[int], known: list[int]
) -> None:
    state.define(Group(id=4, key="k", label="data", ranks=ranks, size=len(ranks)))
    assert read(state).groups[4].ranks == known


def test_few_bytes_do_not_make_ranks_without_end(
    state: LiveState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "_MOST_RANKS", 2000)
    ranks = list(range(1024))
    for number in range(4, 7):
        state.define(Group(id=number, key="k", label="data", ranks=ranks, size=len(ranks)))
    found = read(state).groups
    assert {number: len(group.ranks) for number, group in found.items()} == {4: 1024, 5: 0, 6: 0}
    assert found[6].size == 1024


def test_it_says_whether_the_program_has_left_its_group(state: LiveState) -> None:
    assert read(state).left_ns == 0
    state.leave(1234)
    assert read(state).left_ns == 1234
    state.leave(0)
    assert read(state).left_ns == 0
