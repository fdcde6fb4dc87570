"""An epoch that is over is read once, as long as its files stay as they are."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dsprof.analysis import epochs
from dsprof.analysis.aggregates.epochs import Epochs
from dsprof.analysis.summarise import summarise
from dsprof.diagnosis.build import summarise_all
from dsprof.trace.run import find_run
from tests.factories.epochs import Start, write


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DSPROF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three starts; the first two were killed long ago."""
    killed = (None, None)
    starts = Start(0, ends=killed), Start(60, taken_before=8, ends=killed), Start(120)
    folder = write(tmp_path / "traces", *starts)
    for path in folder.iterdir():
        aged(path)
    return folder


def aged(path: Path, age_s: float = 3600) -> None:
    os.utime(path, (time.time() - age_s,) * 2)


def read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Epochs, list[int]]:
    """Return the epochs of a run, and which of them were read beside the last."""
    found: list[int] = []

    def counted(files, kinds, **given):
        found.append(files.headers[0].restarts + 1)
        return summarise(files, kinds, **given)

    with monkeypatch.context() as patched:
        patched.setattr(epochs, "summarise", counted)
        return summarise_all(find_run([folder]))[Epochs], found


def test_earlier_epochs_are_read_once(
    run: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, before = read(run, monkeypatch)
    again, after = read(run, monkeypatch)
    assert (before, after) == ([1, 2], [])
    assert again == first
    assert [one.end for one in again.each] == ["killed", "killed", "exited"]


def test_an_epoch_whose_files_changed_is_read_again(
    run: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(run, monkeypatch)
    aged(run / "trace.1.rank00001.json", 1800)
    assert read(run, monkeypatch)[1] == [2]


def test_files_that_were_just_written_are_not_kept(
    run: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged(run / "trace.rank00000.json", 0)
    read(run, monkeypatch)
    assert read(run, monkeypatch)[1] == [1]


@pytest.mark.parametrize("content", [b"", b"\x93", b"\xc0" * 40])
def test_a_damaged_entry_is_not_used(
    run: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    first, _ = read(run, monkeypatch)
    for entry in cache.glob("*.epoch"):
        entry.write_bytes(content)
    again, after = read(run, monkeypatch)
    assert (again, after) == (first, [1, 2])


def test_without_a_cache_all_are_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSPROF_CACHE", "off")
    read(run, monkeypatch)
    assert read(run, monkeypatch)[1] == [1, 2]
