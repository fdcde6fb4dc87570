"""`enable` and `record`: their options, and a report while ranks still write."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, get_type_hints

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import dsprof
from dsprof.config import FIELDS, Config
from dsprof.errors import ConfigError
from dsprof.recording import session


@pytest.fixture
def be_rank() -> Iterator[Callable[[int], None]]:
    def join(rank: int) -> None:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)

    yield join
    dsprof.disable()
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("function", [dsprof.enable, dsprof.record])
def test_arguments_are_the_declared_configuration(function: Callable[..., Any]) -> None:
    names = {"Literal": Literal, "NoReturn": NoReturn, "Sequence": Sequence, "os": os}
    names |= {"Recording": Any}
    hints = get_type_hints(function, localns=names)
    parameters = inspect.signature(function).parameters
    assert list(parameters) == ["config", *FIELDS, "unknown"]
    # A caller may give a path for text, and any sequence for a tuple.
    wider: dict[str, Any] = {"out": str | os.PathLike[str], "hooks": Sequence[str]}
    wider["alerts"] = str | os.PathLike[str] | None
    assert {name: hints[name] for name in FIELDS} == get_type_hints(Config) | wider


def test_options_left_out_leave_their_value_to_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSPROF_EVERY", "3")
    monkeypatch.setenv("DSPROF_STEPS", "7")
    with dsprof.record(out=tmp_path, steps=None):
        config = session.current().config  # type: ignore[union-attr]
        assert (config.every, config.steps, config.out) == (3, None, str(tmp_path))
    assert session.current() is None


def test_a_wrong_option_of_record_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="did you mean 'steps'"):
        dsprof.record(step=3)  # type: ignore[arg-type]


def test_report_shows_what_is_on_disk_and_names_who_is_missing(
    tmp_path: Path, be_rank: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    be_rank(0)
    with dsprof.record(out=tmp_path) as run:
        dist.all_reduce(torch.zeros(4))
    page = run.report()
    assert page == tmp_path / "report.html"
    assert page.read_text().startswith("<!doctype html>")
    assert "no trace file: rank 1" in capsys.readouterr().err


def test_a_recording_says_what_it_does(tmp_path: Path, be_rank: Callable[[int], None]) -> None:
    run = dsprof.record(out=tmp_path)
    assert repr(run) == "dsprof recording: not begun"
    with run:
        assert repr(run) == "dsprof recording: on, no process group has communicated"
        be_rank(0)
        dist.all_reduce(torch.zeros(4))
    assert repr(run) == f"dsprof recording: ended, trace in {tmp_path}"


def test_report_works_inside_and_goes_where_it_is_told(
    tmp_path: Path, be_rank: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    be_rank(0)
    with dsprof.record(out=tmp_path / "traces") as run:
        dist.all_reduce(torch.zeros(4))
        writer = session.current().writer  # type: ignore[union-attr]
        assert writer is not None
        while not writer.path.is_file():
            pass
        page = run.report(tmp_path / "now.html")
    assert page == tmp_path / "now.html"
    assert page.stat().st_size > 1000
    assert "still running; 0 steps so far" in capsys.readouterr().err


def test_each_of_two_recordings_reports_itself(
    tmp_path: Path, be_rank: Callable[[int], None]
) -> None:
    be_rank(0)
    runs = []
    for count in (2, 3):
        with dsprof.record(out=tmp_path) as run:
            for _ in range(count):
                dist.all_reduce(torch.zeros(4))
                dsprof.step()
        runs.append(run)
    for count, run in zip((2, 3), runs, strict=True):
        page = run.report(tmp_path / "page.html")
        assert page is not None
        title = page.read_text().partition("<title>")[2].partition("</title>")[0]
        assert f", {count} steps," in title
        assert "epoch" not in title


def test_report_does_nothing_on_other_ranks(tmp_path: Path, be_rank: Callable[[int], None]) -> None:
    be_rank(1)
    with dsprof.record(out=tmp_path) as run:
        dist.all_reduce(torch.zeros(4))
    assert run.report() is None
    assert not (tmp_path / "report.html").exists()


def test_report_of_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with dsprof.record(out=tmp_path) as run:
        pass
    assert run.report() is None
    assert "nothing is recorded yet" in capsys.readouterr().err


def test_record_leaves_a_recording_that_was_on(
    tmp_path: Path, be_rank: Callable[[int], None]
) -> None:
    be_rank(0)
    dsprof.enable(out=tmp_path / "first")
    on = session.current()
    with dsprof.record(out=tmp_path / "second"):
        dist.all_reduce(torch.zeros(4))
    assert session.current() is on
    assert not (tmp_path / "second").exists()


def test_options_that_come_too_late_are_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "dsprof.yaml"
    file.write_text("every: 5\n")
    try:
        dsprof.enable(out=tmp_path, steps=3)
        dsprof.enable()
        dsprof.enable(out=tmp_path, steps=3)
        assert capsys.readouterr().err == ""
        with dsprof.record(steps=4, out="elsewhere", every=1):
            pass
        assert capsys.readouterr().err == "dsprof: recording is already on; ignored: out, steps\n"
        dsprof.enable(config=file)
        assert capsys.readouterr().err == ""
    finally:
        dsprof.disable()
    monkeypatch.setenv("DSPROF", "1")
    try:
        dsprof.enable()
        dsprof.enable(config=file)
        said = capsys.readouterr().err
        assert said == "dsprof: recording is already on (DSPROF=1); ignored: every\n"
    finally:
        dsprof.disable()
