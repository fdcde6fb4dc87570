"""Each step of each rank in sums, of recordings with and without an end."""

from __future__ import annotations

from pathlib import Path

import pytest

import dsprof
from dsprof.api import rank_steps
from dsprof.trace.device_counters import ALLOCATED
from dsprof.trace.lines import LINES
from dsprof.trace.reader import read_trace
from dsprof.trace.run import find_run
from dsprof.trace.schema import MemorySample
from dsprof.trace.selection import Selection
from tests.factories.month import FastMotion
from tests.factories.trace import header, span, step, sync
from tests.factories.trace_files import encode

STEPS, SLOW = 3000, 700


@pytest.fixture(scope="module")
def always(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("always")
    run = FastMotion(folder, 2_000_000)
    run.slow = {SLOW: 4.0}
    progress, outbox = run.recorder.progress, run.recorder.outbox
    device = {ALLOCATED: 7}  # a hook samples it
    progress.step_listeners.append(
        lambda step: outbox.add(MemorySample("step", run.clock(), step, device=device))
    )
    with run.running():
        run.train(STEPS)
    assert run.writer.error is None
    return folder


def test_steps_whose_details_are_gone_still_have_sums(always):
    rows = list(dsprof.load(always).rank_steps)
    assert len(read_trace(always / "trace.rank00000.json").steps) < STEPS / 2
    assert [row.step for row in rows] == list(range(STEPS))
    assert max(rows, key=lambda row: row.end_ns - row.start_ns).step == SLOW
    assert {(row.calls, row.rss_bytes, row.allocated_bytes) for row in rows} == {(4, 10**9, 7)}


def test_sums_that_were_written_are_those_of_the_details(always, monkeypatch):
    run = find_run([always])
    [written] = rank_steps.rank_steps(run)
    monkeypatch.setattr(rank_steps, "step_totals", lambda *_: [])
    [summed] = rank_steps.rank_steps(run)
    for name, values in summed.items():
        of_step = dict(zip(written["step"], written[name], strict=True))
        assert values == [of_step[step] for step in summed["step"]], name


def test_chosen_steps_are_the_only_rows(always):
    [columns] = rank_steps.rank_steps(find_run([always], Selection(steps=range(690, 710))))
    assert columns["step"] == list(range(690, 710))


def test_a_recording_with_an_end_has_the_sums_of_its_details(tmp_path):
    lines = [LINES["header"](header(0, 1))]
    for number in range(3):
        at = 100.0 * number
        lines += [sync("all_reduce", at + 10 * one, 5, step=number) for one in range(number)]
        lines.append(LINES["phase"](span("forward", at, at + 50, number), name="forward"))
        lines.append(LINES["step"](step(number, at, at + 90)))
    (tmp_path / "trace.rank00000.json").write_bytes(encode(lines))
    rows = list(dsprof.load(tmp_path).rank_steps)
    assert [row.calls for row in rows] == [0, 1, 2]
    assert [row.blocked_ns for row in rows] == [0, 5_000_000, 10_000_000]
    assert [row.forward_ns for row in rows] == [50_000_000] * 3
    assert [row.backward_ns for row in rows] == [None] * 3
    assert [row.end_ns - row.start_ns for row in rows] == [90_000_000] * 3
    assert [row.rss_bytes for row in rows] == [None] * 3
