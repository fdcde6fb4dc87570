"""States of dead processes are kept beside their traces, and leave the memory after a day."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dsprof.environment import EnvSnapshot
from dsprof.environment.machine import boot_id
from dsprof.recording.recorder import live_state
from dsprof.recording.recorder.live_state import Kinds, LiveState
from dsprof.trace.dumps import kept_states, state_file
from dsprof.trace.dumps.kept_states import (
    keep_state,
    keep_states_of,
    keep_states_of_the_dead,
    remove_stale,
)
from dsprof.trace.dumps.state_file import find_state, kept_name, read_state
from dsprof.trace.run import RunFiles
from dsprof.trace.scope import clock
from dsprof.trace.writing.writer import write_environment
from tests.factories.trace import header


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands in for /dev/shm."""
    for module in (live_state, kept_states, state_file):
        monkeypatch.setattr(module, "memory_folders", lambda: iter([tmp_path]))
    return tmp_path


def test_those_of_dead_processes_go_after_a_day(memory: Path) -> None:
    day_ns, gone = 24 * 3600 * 10**9, 1 << 22
    stale = {gone + 1: 25 * 3600 * 10**9, gone + 2: day_ns // 2, os.getpid(): 0}
    for pid, age_ns in stale.items():
        live = LiveState()
        started = {"pid": pid, "started_epoch_ns": time.time_ns() - age_ns}
        assert live.open(header(started_monotonic_ns=clock(), **started), lambda d: d) == ""
        assert live.path is not None
        made_ns = time.time_ns() - age_ns
        os.utime(live.path, ns=(made_ns, made_ns))
    remove_stale(memory)
    left = {read_state(path).header.pid for path in memory.iterdir()}
    assert left == {gone + 2, os.getpid()}


def test_what_a_process_was_killed_over_goes_after_a_day(memory: Path) -> None:
    uid, old_ns = os.getuid(), time.time_ns() - 25 * 3600 * 10**9
    killed = memory / f".dsprof-{uid}-run-0-1.state.0123abcd"
    recent = memory / f".dsprof-{uid}-run-0-2.state.0123abcd"
    for path in (killed, recent):
        path.write_bytes(b"half")
    os.utime(killed, ns=(old_ns, old_ns))
    remove_stale(memory)
    assert [*memory.iterdir()] == [recent]


def test_copies_are_made_of_the_dead_only(
    memory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("traces")
    for pid in (os.getpid(), 1 << 22):
        write_environment(folder, header(rank=1, pid=pid), EnvSnapshot())
    for pid in (os.getpid(), 1 << 22, (1 << 22) + 1):  # the last one recorded elsewhere
        assert LiveState().open(header(rank=1, pid=pid), lambda definition: definition) == ""
    keep_states_of_the_dead("run-1", folder)
    copies = [path.name for path in folder.glob("state-*")]
    assert copies == [kept_name(header(rank=1, pid=1 << 22))]


def test_starts_of_a_container_keep_a_state_each(
    memory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each start of a rank may have PID 1 there."""
    folder = tmp_path_factory.mktemp("traces")
    for start in (1, 2):
        gone = header(rank=1, pid=1 << 22, started_monotonic_ns=start)
        path = write_environment(folder, gone, EnvSnapshot())
        assert LiveState().open(gone, lambda definition: definition) == ""
        keep_states_of_the_dead("run-1", folder)
        assert find_state(gone, path.parent) is not None
        for live in memory.glob("*.state"):
            live.unlink()
    assert len([*folder.glob("state-*")]) == 2


def test_none_is_made_of_a_process_that_shows_life_in_another_container(
    memory: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("traces")
    there = header(pid=1 << 22, pid_namespace=1)
    write_environment(folder, there, EnvSnapshot())
    live = LiveState()
    assert live.open(there, lambda definition: definition) == ""
    assert live.path is not None
    beat_ns = read_state(live.path).beat_ns
    for later_s, copies in ((9, 0), (11, 1)):
        now_ns = beat_ns + later_s * 10**9
        monkeypatch.setattr(kept_states, "clock", lambda now_ns=now_ns: now_ns)
        keep_states_of_the_dead("run-1", folder)
        assert len([*folder.glob("state-*")]) == copies


def test_a_report_keeps_the_states_of_the_dead(
    memory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    live = LiveState()
    gone = header(rank=1, pid=1 << 22, boot_id=boot_id())
    path = write_environment(tmp_path_factory.mktemp("traces"), gone, EnvSnapshot())
    assert live.open(gone, lambda definition: definition) == ""
    assert live.path is not None
    kind = Kinds(live.words, "all_reduce")["bfloat16"]
    live.issue(1, 1, 1, kind, 64, 1001, 3, 5, 0, 77)
    gone.state_file = live.path.name
    keep_states_of(RunFiles((path,), (gone,)))
    live.path.unlink()
    state = find_state(gone, path.parent)
    assert state is not None
    assert [call.id for call in state.in_flight] == [1]


def test_a_state_of_another_process_is_not_taken(
    memory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("traces")
    live = LiveState()
    gone = header(rank=1, pid=1 << 22)
    assert live.open(gone, lambda definition: definition) == ""
    assert live.path is not None
    keep_state(live.path, folder / kept_name(gone))
    assert find_state(gone, folder) is not None
    for other in (
        header(rank=1, pid=gone.pid, run_key="run-2"),
        header(rank=1, pid=gone.pid, started_monotonic_ns=7),
        header(rank=0, pid=gone.pid),
    ):
        assert find_state(other, folder) is None
