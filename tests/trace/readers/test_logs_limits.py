"""Logs made to take long, or to fill the memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.trace.readers.logs import LogReader
from dsprof.trace.readers.logs.lines import LONGEST_LINE_BYTES
from dsprof.trace.readers.logs.scan import LogScan
from dsprof.trace.readers.logs.tracebacks import BEGIN
from dsprof.trace.run import find_run
from tests.factories import logs as make
from tests.fuzzing.formats import FORMATS
from tests.speed import at_most


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_the_whole_log_is_judged(path: Path) -> None:
    path.write_bytes(FORMATS["log"]().whole)
    diagnosis = diagnose(find_run([path]))
    assert {fact.kind for fact in diagnosis.logged} >= {"network", "path", "network devices"}
    assert len(diagnosis.logged_calls) == 2


@pytest.mark.alone
@pytest.mark.parametrize(
    "unit", ["a:", ":1:1 ", "[PG ", "[PG 1 PG GUID ", "[1] ", "[rank1]:", "comm op: ", "1: ", " "]
)
def test_no_line_takes_long(unit: str) -> None:
    """A line of 64 KiB that almost fits costs a fraction of a second, not half a minute."""
    scan = LogScan()
    with at_most(50):
        for end in ("NCCL INFO x", "atchdog ", "Tried to allocate 1.00 MiB out of memory."):
            scan.take((unit * (LONGEST_LINE_BYTES // len(unit)) + end)[-LONGEST_LINE_BYTES:])


@pytest.mark.alone
@pytest.mark.parametrize(
    ("begin", "unit", "end"),
    [
        ("h:1:1 [0] NCCL INFO NET/IB : Using ", "[0]a", ""),
        ("h:1:1 [0] NCCL INFO ", "nranks 1 busId 1 ", ""),
        ("h:1:1 [0] NCCL INFO Using network ", ":a", ""),
        ("", "Watchdog caught collective operation timeout: WorkNCCL(OpType=A, NumelIn=11, ", ""),
        ("", "a1", "Comm. Op            Message Size"),
        ("", "a1", " SocketImpl("),
    ],
)
def test_no_message_takes_long(begin: str, unit: str, end: str) -> None:
    """A line that repeats a part of a message takes time in proportion to its length."""
    count = (LONGEST_LINE_BYTES - len(begin) - len(end)) // len(unit)
    with at_most(4):
        LogScan().take(begin + unit * count + end)


@pytest.mark.parametrize(
    "line",
    [
        make.said("Using network IB", host="host{}"),
        f"[rank{{0}}]: {BEGIN}\n[rank{{0}}]: OSError: a",
    ],
)
def test_no_more_processes_are_kept_than_can_be_judged(
    path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr("dsprof.trace.readers.logs.scan._MOST_PROCESSES", 4)
    lines = [line.format(i) for i in range(6)]
    path.write_text("\n".join(lines))
    traces = list(LogReader().read_traces(path))
    assert len(traces) == 4
    notes = [note.text for trace in traces for note in trace.notes]
    assert any("log names more processes" in text and ": 2 lines" in text for text in notes)


def test_all_ranks_of_the_largest_runs_are_read(path: Path) -> None:
    lines = [f"[rank{i}]: {line}" for i in range(20_000) for line in (BEGIN, "OSError: a")]
    path.write_text("\n".join(lines))
    assert [header.rank for header in LogReader().read_headers(path)] == [*range(20_000)]


def test_all_ranks_of_a_log_share_the_room_for_facts(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsprof.trace.readers.logs.scan._MOST_FACTS", 5)
    lines = [f"[rank{i % 4}]: {make.call('all_reduce', 1.0, f'{i}.0 KB')}" for i in range(8)]
    path.write_text("\n".join([*lines, *lines[:2]]))
    traces = list(LogReader().read_traces(path))
    calls = [one.calls for trace in traces if trace.log for one in trace.log.calls.values()]
    assert sorted(calls) == [1, 1, 1, 2, 2]
    assert any("3 lines are left out" in note.text for note in traces[0].notes)
