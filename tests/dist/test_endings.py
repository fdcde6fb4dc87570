"""Processes end, fail and begin again as without dsprof; the trace says what was lost of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import read_trace
from dsprof.trace.run import find_run
from dsprof.trace.schema import FILE_PATTERN
from tests.dist.launch import PROGRAMS, environment
from tests.dist.programs.endings import SCENARIOS

ENDS_EARLY = {"exits_at_once", "is_terminated", "waits_in_vain"}
CANNOT_WRITE = {"is_out_of_memory", "has_a_read_only_folder"}
FULL_DISK = "has_a_full_disk"
_TIME = re.compile(r"\[F\d{4} [\d:.]+ ")  # in gloo's messages

pytestmark = [pytest.mark.dist, pytest.mark.long]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All scenarios, bare and recorded, as the program left them."""
    folder = tmp_path_factory.mktemp("endings")
    program = [sys.executable, PROGRAMS / "endings.py", folder]
    subprocess.run(program, env=environment({}), check=True)
    return folder


@pytest.fixture(scope="module")
def endings(folder: Path) -> dict[str, dict[str, dict[str, list[Any]]]]:
    return json.loads(_TIME.sub("", (folder / "endings.json").read_text()))  # type: ignore[no-any-return]


def traces(folder: Path, name: str) -> list[RankTrace]:
    return [read_trace(file) for file in sorted((folder / name).glob(FILE_PATTERN))]


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_process_ends_as_without_dsprof(endings: dict[str, Any], name: str) -> None:
    assert endings[name]["recorded"] == endings[name]["bare"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_trace_says_how_it_ended(folder: Path, name: str) -> None:
    log = "".join(file.read_text() for file in folder.glob(f"{name}.recorded.*.err"))
    is_refused = "ends early" in log or "records nothing" in log
    assert is_refused == (name in CANNOT_WRITE)
    assert ("cannot write" in log) == (name == FULL_DISK)
    for trace in traces(folder, name):
        is_closed = name not in ENDS_EARLY | CANNOT_WRITE
        assert (trace.trailer is not None) == is_closed
        if trace.trailer is not None:
            assert trace.trailer.exception == ("RuntimeError" if name == "raises" else "")
            assert (trace.trailer.dropped > 0) == (name == FULL_DISK)
            assert trace.trailer.failed_hooks == {}
            assert len(trace.collectives) >= 1


def test_every_collective_of_every_thread_is_there(folder: Path) -> None:
    [trace] = traces(folder, "communicates_from_threads")
    assert len(trace.collectives) == 4 * 200 * 2
    assert len(set(trace.collectives.thread)) == 4
    assert trace.trailer is not None
    assert trace.trailer.unmatched_waits == 0


@pytest.mark.parametrize(
    "name", ["loads_data_by_fork", "loads_data_by_spawn", "starts_processes", "saves_in_a_process"]
)
def test_children_record_nothing(folder: Path, name: str) -> None:
    [trace] = traces(folder, name)
    assert len(trace.collectives) == 2 * 3 * 2


def test_ranks_of_jobs_that_a_rank_starts_are_recorded(folder: Path) -> None:
    found = traces(folder, "starts_jobs")
    who = sorted((trace.header.rank, trace.header.world_size) for trace in found)
    assert who == [(0, 1), (0, 1), (0, 2), (1, 2)]


def test_another_rank_or_world_has_a_trace_of_its_own(folder: Path) -> None:
    found = traces(folder, "begins_again_as_another")
    who = sorted((t.header.pid, t.header.rank, t.header.world_size) for t in found)
    processes = {pid for pid, _, _ in who}
    [alone] = [pid for pid, _, size in who if size == 1]
    swapped = [(pid, rank, 2) for pid in processes for rank in (0, 1)]
    assert who == sorted([*swapped, (alone, 0, 1)])
    assert all(len(trace.collectives) == 3 * 2 for trace in found)
    newest = find_run([folder / "begins_again_as_another"])
    assert [header.world_size for header in newest.headers] == [1]
    assert [len(epoch.files) for epoch in newest.epochs] == [2, 2, 1]
    assert newest.strangers == ()


def test_each_group_of_the_same_name_has_a_trace_of_its_own(folder: Path) -> None:
    found = traces(folder, "begins_again")
    generations = [group.generation for trace in found for group in trace.groups.values()]
    assert sorted(generations) == [1, 1, 2, 2, 3, 3, 4, 4]
    assert sorted(len(trace.collectives) for trace in found) == [6] * 6 + [7] * 2  # the barrier
    assert len(find_run([folder / "begins_again"]).epochs) == 4
