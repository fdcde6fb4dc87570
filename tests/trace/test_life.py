"""What shows that the process of a rank lives, or that it is gone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsprof.environment.machine import boot_id
from dsprof.environment.processes import pid_namespace
from dsprof.recording.recorder import live_state
from dsprof.recording.recorder.live_state import LiveState
from dsprof.trace import life
from dsprof.trace.dumps.state_file import state_of
from dsprof.trace.life import life_of
from dsprof.trace.run import find_run, goes_on, is_growing
from dsprof.trace.schema import Header
from dsprof.trace.scope import clock
from tests.factories import kineto
from tests.factories.trace import header
from tests.factories.trace_files import encode, run_events

_NO_PID = 1 << 22


@pytest.fixture
def memory(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands in for /dev/shm."""
    folder = tmp_path_factory.mktemp("memory")
    for module in (live_state, life):
        monkeypatch.setattr(module, "memory_folders", lambda: iter([folder]))
    return folder


def recorded(
    folder: Path, age_s: float = 0, *, rank: int = 0, world_size: int = 1, **fields: object
) -> tuple[Path, Header]:
    """Write a trace without a last line, for the last time `age_s` ago."""
    given = {"pid": os.getpid(), "boot_id": boot_id(), "started_monotonic_ns": clock(), **fields}
    path, head = folder / f"trace.rank{rank:05d}.json", header(rank, world_size, **given)
    path.write_bytes(encode(run_events(head)[:-1]).removesuffix(b"\n]\n"))
    os.utime(path, (time.time() - age_s,) * 2)
    return path, head


@pytest.fixture
def state(memory: Path) -> Iterator[LiveState]:
    live = LiveState()
    yield live
    live.close()


def test_a_process_that_is_there_is_not_gone(tmp_path: Path, memory: Path) -> None:
    found = life_of(*recorded(tmp_path, age_s=60))
    assert not found.is_gone
    assert 59 < found.silent_s < 600


@pytest.mark.parametrize(("age_s", "is_gone"), [(0, False), (60, True)])
def test_where_the_namespace_is_not_recorded_silence_decides(
    tmp_path: Path, memory: Path, age_s: float, is_gone: bool
) -> None:
    """In a container of its own, a process that writes has another number."""
    assert life_of(*recorded(tmp_path, age_s, pid=_NO_PID)).is_gone == is_gone


def test_in_the_same_namespace_it_is_known_at_once(tmp_path: Path, memory: Path) -> None:
    assert life_of(*recorded(tmp_path, pid=_NO_PID, pid_namespace=pid_namespace())).is_gone


def test_a_process_of_another_namespace_is_not_known_to_be_gone(
    tmp_path: Path, state: LiveState
) -> None:
    """As of a container beside this one that shares /dev/shm: its process has another number."""
    path, head = recorded(tmp_path, age_s=60, pid=_NO_PID, pid_namespace=1)
    assert not life_of(path, head).is_gone
    assert state.open(head, lambda definition: definition) == ""
    found = life_of(path, head)
    assert not found.is_gone
    assert found.silent_s < 60  # its live state is read all the same
    assert goes_on(find_run([tmp_path]))


def test_a_process_of_another_machine_is_not_known_to_be_gone(tmp_path: Path) -> None:
    assert not life_of(*recorded(tmp_path, age_s=60, pid=_NO_PID, boot_id="boot-a")).is_gone


def test_with_a_live_state_it_is_known_at_once(tmp_path: Path, state: LiveState) -> None:
    path, head = recorded(tmp_path, pid=_NO_PID, pid_namespace=pid_namespace())
    assert state.open(head, lambda definition: definition) == ""
    assert life_of(path, head).is_gone
    assert not is_growing(find_run([tmp_path]))


def test_a_run_of_which_a_rank_was_killed_does_not_go_on(tmp_path: Path, state: LiveState) -> None:
    recorded(tmp_path, world_size=2)
    assert goes_on(find_run([tmp_path]))
    given = {"pid": _NO_PID, "pid_namespace": pid_namespace()}
    _, head = recorded(tmp_path, rank=1, world_size=2, **given)
    assert state.open(head, lambda definition: definition) == ""
    assert is_growing(find_run([tmp_path]))
    assert not goes_on(find_run([tmp_path]))


def test_the_live_state_is_a_sign_of_life_where_nothing_is_written(
    tmp_path: Path, state: LiveState
) -> None:
    path, head = recorded(tmp_path, age_s=3600)
    assert state.open(head, lambda definition: definition) == ""
    found = life_of(path, head)
    assert found.silent_s < 600
    assert not found.is_gone


def test_a_new_file_of_another_tool_does_not_grow(tmp_path: Path) -> None:
    kineto.write(tmp_path / "rank0.json", kineto.steps(3, 10, 2))
    assert not is_growing(find_run([tmp_path]))


@pytest.mark.parametrize("name", ["a\0.state", "../a.state", "\x1b.state"])
def test_what_is_no_name_of_a_state_is_not_looked_for(
    tmp_path: Path, memory: Path, name: str
) -> None:
    _, head = recorded(tmp_path, state_file=name)
    assert state_of(head) == ""
    assert not life_of(tmp_path / "trace.rank00000.json", head).is_gone
