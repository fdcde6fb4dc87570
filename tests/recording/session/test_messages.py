"""What a session says while it runs and when it ends, and of what it could not do."""

from __future__ import annotations

import io
import os
import shutil
import sys
from pathlib import Path
from shlex import quote
from types import ModuleType
from typing import Any

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import dsprof
from dsprof.analysis.rank.steps import counted_steps
from dsprof.environment import EnvSnapshot, machine
from dsprof.recording import session
from dsprof.recording.this_process import is_of_several, is_script
from dsprof.trace.writing.writer import write_environment
from tests.factories.trace import header
from tests.recording.session.fake_group import become, communicate, read


@pytest.mark.parametrize("folder", ["runs", "tmpwdpex_7z", "my runs; $(date)"])
def test_rank_zero_says_what_to_do_next(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], folder: str
) -> None:
    """Also where the name of the folder could announce a secret."""
    tmp_path /= folder
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    dsprof.enable(out=str(tmp_path))
    communicate()
    dsprof.step()
    dsprof.disable()
    (line,) = capfd.readouterr().err.splitlines()
    see = f"see them with: dsprof report {quote(str(tmp_path))}"
    assert line == f"dsprof: steps recorded: 1, trace files: 1; {see}"


def test_rank_zero_says_how_many_steps_are_in_counters_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    dsprof.enable(out=str(tmp_path), steps=1)
    for _ in range(3):
        communicate()
        dsprof.step()
    dsprof.disable()
    said = capfd.readouterr().err
    assert said.startswith("dsprof: steps recorded: 3 (2 of them only in counters), trace files")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"mode": "always", "start_step": 2, "steps": 1, "every": 2},
            "start_step, steps and every are ignored: mode: always records all steps",
        ),
        (
            {"capture_profiler": True},
            "capture_profiler is ignored: only mode: always has captures",
        ),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_rank_zero_says_which_settings_do_nothing(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    options: dict[str, Any],
    said: str,
    rank: int,
) -> None:
    become(rank=rank, world_size=2)
    dsprof.enable(out=str(tmp_path), **options)
    for _ in range(3):
        communicate()
        dsprof.step()
    become(rank=rank, world_size=2)
    communicate()
    dsprof.disable()
    lines = capfd.readouterr().err.splitlines()
    assert lines.count(f"dsprof: {said}") == (rank == 0)


def test_always_counts_no_step_only_because_of_the_window(tmp_path: Path) -> None:
    dsprof.enable(out=str(tmp_path), mode="always", start_step=2, steps=1)
    for _ in range(3):
        communicate()
        dsprof.step()
    dsprof.disable()
    assert [*counted_steps(read(tmp_path))] == []


def test_an_unwritable_folder_is_said_and_the_run_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    dsprof.enable(out=str(tmp_path / "file"))
    communicate(3)
    dsprof.disable()
    said = f"dsprof: rank {dist.get_rank()} records nothing in {tmp_path / 'file'}: File exists\n"
    assert capfd.readouterr().err == said


def test_why_nothing_was_recorded_is_said_in_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> str:
        raise OSError("too many open files")

    monkeypatch.setattr(machine, "boot_id", fails)
    dsprof.enable(out=str(tmp_path))
    communicate()
    dsprof.disable()
    said = capfd.readouterr().err
    assert said == "dsprof: nothing was recorded: OSError: too many open files\n"


def test_a_hook_that_failed_is_not_said_to_be_why_nothing_was_recorded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    dist.destroy_process_group()
    dsprof.enable(out=str(tmp_path), interception="native")
    dsprof.disable()
    said = capfd.readouterr().err
    assert said.startswith("dsprof: nothing was recorded. Failed hooks: native: RuntimeError: no ")


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_removed_folder_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], is_taken: bool
) -> None:
    """Another job may record in a folder of its name by then."""
    dsprof.enable(out=str(tmp_path / "out"))
    communicate()
    writer = session.current().writer  # type: ignore[union-attr]
    while writer.events < 3:  # the file is there
        os.sched_yield()
    shutil.rmtree(tmp_path / "out")
    if is_taken:
        other = write_environment(tmp_path / "out", header(rank=dist.get_rank()), EnvSnapshot())
        assert other == writer.path
    dsprof.disable()
    said = capfd.readouterr().err
    assert "was moved, removed or cut" in said
    assert "see them with" not in said


def test_a_trace_that_another_program_cut_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As logrotate does with copytruncate: the writer goes on behind a hole."""
    dsprof.enable(out=str(tmp_path))
    communicate()
    writer = session.current().writer  # type: ignore[union-attr]
    while writer.events < 3:  # the file is there
        os.sched_yield()
    os.truncate(writer.path, 0)
    dsprof.disable()
    assert "was moved, removed or cut" in capfd.readouterr().err


def test_a_full_stderr_is_not_the_runs_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("no space left")

    monkeypatch.setattr(sys, "stderr", Full())
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    dsprof.enable(out=str(tmp_path))
    communicate()
    dsprof.disable()
    assert len(read(tmp_path).collectives) == 1


def test_code_without_a_file_is_no_script_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    assert not is_script()


def test_a_python_without_the_gil_is_not_recorded_and_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    before = vars(dist.Work)["wait"]
    monkeypatch.setattr(sys, "_is_gil_enabled", bool, raising=False)
    dsprof.enable(out=str(tmp_path))
    communicate()
    assert vars(dist.Work)["wait"] is before
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("dsprof: not recording: this Python runs without the GIL")
    assert session.current() is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("rank", "expected"), [("0", False), ("1", True)])
def test_the_first_rank_speaks_for_the_others(
    monkeypatch: pytest.MonkeyPatch, rank: str, expected: bool
) -> None:
    monkeypatch.setenv("RANK", rank)
    assert is_of_several() is expected
