from __future__ import annotations

import sys

import pytest

from dsprof.cli import loading


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return what is drawn when one of four ranks, and then all, of 400 MB are read in 2 s each."""
    times = iter([0.0, 2.0, 8.0])
    monkeypatch.setattr(loading, "monotonic", lambda: next(times))
    progress = loading.progress_on_terminal(400_000_000)
    progress(1, 4)
    progress(4, 4)
    return capsys.readouterr().err.split("\r")


def test_the_bar_shows_throughput_and_time_left(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    _, first, last = shown(monkeypatch, capsys)
    assert "rank 1 of 4" in first
    assert "50 MB/s, 6 s left" in first
    assert last == "\x1b[K"


def test_a_narrow_terminal_gets_as_much_of_it_as_one_line_holds(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    _, first, _ = shown(monkeypatch, capsys)
    assert first == "reading: rank 1 of 4, 50 MB/s, 6 s left\x1b[K"


def test_a_file_gets_no_bar(monkeypatch, capsys):
    assert shown(monkeypatch, capsys) == [""]
