"""Collectives in flight: written as open, and closed by their record or by the end."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from dsprof.trace.reader import read_trace
from dsprof.trace.schema import Trailer
from dsprof.trace.window import Window
from tests.trace.written_run import START_NS, WHOLE_RUN, Run, after_one_look, collective


def test_what_is_in_flight_at_the_end_is_open(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.unfinished.append(collective(5, 0, done_ns=0, wait_ns=0, waited_ns=0, waits=0))
    trace = run.close()
    assert list(trace.collectives.id) == [5]
    assert list(trace.collectives.is_open) == [True]


@pytest.mark.parametrize(
    ("window", "budget", "age_s", "count"),
    [
        (WHOLE_RUN, 10**9, 1, 1),
        (Window(start_step=5), 10**9, 1, 0),
        (Window(start_step=5), 10**9, 60, 1),
        (WHOLE_RUN, 1, 1, 0),
        (WHOLE_RUN, 1, 60, 1),
    ],
)
def test_where_collectives_are_only_counted_those_that_hang_are_written_as_open(
    tmp_path: Path, window: Window, budget: int, age_s: int, count: int
) -> None:
    run = Run(tmp_path, window, budget)
    issue_ns = time.perf_counter_ns() - age_s * 10**9
    run.unfinished.append(collective(5, 0, issue_ns=issue_ns, done_ns=0, waits=0))
    after_one_look(run)
    assert len(read_trace(run.writer.path).collectives) == count


def test_a_finished_line_replaces_the_open_one(tmp_path: Path) -> None:
    run = Run(tmp_path)
    late = collective(5, 0, issue_ns=time.perf_counter_ns() - 10**10, done_ns=0, waits=0)
    run.unfinished.append(late)
    run.writer.start()
    while (
        not (tmp_path / "trace.rank00000.json").exists()
        or b'"open"' not in (tmp_path / "trace.rank00000.json").read_bytes()
    ):
        os.sched_yield()
    run.unfinished.clear()
    late.done_ns = time.perf_counter_ns()
    run.records.append(late)
    run.writer.close(lambda: Trailer("disable"), run.unfinished)
    trace = read_trace(run.writer.path)
    assert list(trace.collectives.id) == [5]
    assert list(trace.collectives.is_open) == [False]


def test_an_open_one_whose_record_never_comes_is_forgotten(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.unfinished.append(collective(5, 0, done_ns=0, waits=0))
    run.writer.start()
    while not run.writer._opened:
        os.sched_yield()
    run.unfinished.clear()
    while run.writer._opened:
        os.sched_yield()
    assert list(run.close_started().collectives.is_open) == [True]


def test_what_was_open_is_written_in_full_outside_the_window_too(tmp_path: Path) -> None:
    run = Run(tmp_path, Window(start_step=5))
    late = collective(5, 0, done_ns=0, waits=0)
    run.unfinished.append(late)
    run.writer.start()
    while not run.writer._opened:
        os.sched_yield()
    run.unfinished.clear()
    late.done_ns = time.perf_counter_ns()
    run.records.append(late)
    run.writer.close(lambda: Trailer("disable"), run.unfinished)
    trace = read_trace(run.writer.path)
    assert list(trace.collectives.is_open) == [False]
    assert trace.counters == []
    assert not run.writer._opened


def test_a_complete_collective_that_nobody_waited_for_is_not_open(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.unfinished.append(collective(5, 0, wait_ns=0, waited_ns=0, waits=0))
    trace = run.close()
    assert list(trace.collectives.is_open) == [False]


def test_a_send_that_nobody_waited_for_is_not_open(tmp_path: Path) -> None:
    run = Run(tmp_path)
    unknown = {"pending_ns": START_NS, "done_ns": 0, "wait_ns": 0, "waited_ns": 0, "waits": 0}
    run.unfinished += [collective(5, 0, op="send", **unknown), collective(6, 0, **unknown)]
    trace = run.close()
    assert list(trace.collectives.is_open) == [False, True]


def test_thousands_in_flight_share_a_hundred_lanes(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.records.extend(collective(n, 0, done_ns=START_NS + 10**9 + n) for n in range(1, 5001))
    run.close()
    events = json.loads(run.writer.path.read_text())
    assert len({event["tid"] for event in events if event.get("cat") == "comm"}) == 100


def test_a_silent_process_writes_what_it_has_in_flight(tmp_path: Path, monkeypatch: Any) -> None:
    run = Run(tmp_path)
    run.writer._step = 3
    issue_ns = time.perf_counter_ns() - 10**9
    run.unfinished += [
        collective(5, 4, issue_ns=issue_ns, done_ns=0, waits=0),
        collective(6, 4, issue_ns=issue_ns + 10**8, done_ns=0, waits=0),
        collective(7, 4),  # complete, and not waited for
    ]
    monkeypatch.setattr(run.writer._silence, "is_due", lambda now_ns: True)
    run.writer.start()
    while run.writer.events < 5 and not run.writer.is_done:  # the first are of the start
        time.sleep(0.01)
    trace = run.close_started()
    assert {(beat.step, beat.in_flight) for beat in trace.heartbeats} == {(3, 2)}
    assert all(10**9 < beat.oldest_ns < beat.time_ns for beat in trace.heartbeats)
    assert trace.broken_lines == 0
