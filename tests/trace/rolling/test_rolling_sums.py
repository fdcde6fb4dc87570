"""Sums of a recording without end: over spans of time, and of single steps."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.trace.device_counters import ALLOCATED
from dsprof.trace.reader import read_trace
from dsprof.trace.rolling.step_sums import sums_of
from dsprof.trace.run import find_run, read_run
from dsprof.trace.schema import LATE_STEPS, Collective, MemorySample, OpTotals, Phase, Stall
from tests.factories import month
from tests.factories.month import STEP_NS, FastMotion, size_of

BUDGET_BYTES = 2_000_000


def test_sums_over_short_spans_leave_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(month, "STEP_NS", 10 * 10**9)
    run = FastMotion(tmp_path, 1_000_000)
    with run.running():
        run.train(4000)
    trace = read_trace(tmp_path / "trace.rank00000.json")
    steps = {
        length_s: sum(one.steps for one in trace.rollups.values() if one.length_s == length_s)
        for length_s in (10, 300, 3600)
    }
    assert steps == {10: steps[10], 300: 4000, 3600: 4000}
    assert steps[10] < 4000


REQUESTS = 900
STARTED_S = month.STARTED_EPOCH_NS // 10**9


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a process without steps has recorded for 75 minutes."""
    folder = tmp_path_factory.mktemp("server")
    run = FastMotion(folder, 400_000)
    with run.running():
        run.serve(REQUESTS)
    assert run.writer.error is None
    assert size_of(folder) <= 400_000
    return folder


def test_without_steps_roll_ups_hold_all_time(server: Path) -> None:
    assert len(list(server.iterdir())) == 6
    trace = read_trace(server / "trace.rank00000.json")
    assert trace.newest_from > 0  # details have made room
    assert len(trace.collectives) < REQUESTS
    for length_s in (10, 300, 3600):
        spans = [one for one in trace.rollups.values() if one.length_s == length_s]
        assert len(spans) == {10: 451, 300: 16, 3600: 2}[length_s]
        assert sum(one.calls for one in spans) == REQUESTS
        assert sum(one.nbytes for one in spans) == REQUESTS << 24
        assert sum(one.blocked_ns for one in spans) == REQUESTS * 2_000_000
        assert sum(one.ops["all_reduce"].calls for one in spans if one.ops) == REQUESTS
        assert sum(one.total_ns for one in spans) == REQUESTS * month.SERVED_NS
        assert {(one.steps, one.rss_bytes) for one in spans} == {(0, 10**9)}


def test_without_steps_the_oldest_sums_over_short_spans_leave_first(tmp_path: Path) -> None:
    run = FastMotion(tmp_path, 100_000)
    with run.running():
        run.serve(REQUESTS)
    trace = read_trace(tmp_path / "trace.rank00000.json")
    short = [one.begin_s for one in trace.rollups.values() if one.length_s == 10]
    assert len(short) < 400
    assert min(short) > STARTED_S + 500
    assert max(short) > STARTED_S + REQUESTS * 5 - 15
    longest = [one for one in trace.rollups.values() if one.length_s == 3600]
    assert sum(one.calls for one in longest) == REQUESTS


def test_a_report_shows_time_without_steps(server: Path) -> None:
    diagnosis = diagnose(find_run([server]))
    found = diagnosis.time_spans
    assert (found.ranks, found.length_s, len(found.spans)) == (1, 10, 451)
    assert [(one.op, one.calls) for one in found.ops] == [("all_reduce", REQUESTS)]
    assert not diagnosis.history.spans
    assert any(note.startswith("The run has no steps") for note in diagnosis.quality.notes)


def test_sums_until_the_first_step_are_those_of_the_step_too(tmp_path: Path) -> None:
    run = FastMotion(tmp_path, BUDGET_BYTES)
    with run.running():
        run.recorder.progress.enter("forward")
        for _ in range(5):
            run.serve(1)
            run._communicate("forward")
        run.train(40)
    trace = read_trace(tmp_path / "trace.rank00000.json")
    assert trace.totals[0].ops["all_reduce"].calls == 5 + 4
    for length_s in (10, 300, 3600):
        spans = [one for one in trace.rollups.values() if one.length_s == length_s]
        assert sum(one.calls for one in spans) == 40 * 4 + 5
        assert all(one.steps for one in spans)


SCRIPT = """
import sys
import time
from pathlib import Path
from tests.factories import month
month.STEP_NS = int(sys.argv[2])
run = month.FastMotion(Path(sys.argv[1]), 1_000_000)
flush, written = run.writer._flush, [-1]
def flushed():
    step = run.writer._step
    flush()
    written[0] = step
run.writer._flush = flushed
with run.running():
    while True:
        run.train(1000, lambda: print(written[0], flush=True))
"""
"""Prints steps that are on disk: a step that was only seen by the writer may be lost."""


@pytest.mark.parametrize(
    ("lines", "step_ns"), [(2, STEP_NS), (7, STEP_NS), (13, STEP_NS), (13, 100_000)]
)
def test_a_killed_process_loses_no_sums(tmp_path: Path, lines: int, step_ns: int) -> None:
    """In the last case, sums of steps are gone before their span is over."""
    command = [sys.executable, "-c", SCRIPT, tmp_path, str(step_ns)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    done = 0
    for _ in range(lines):
        done = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    trace = read_trace(tmp_path / "trace.rank00000.json")
    assert trace.trailer is None
    last = max(step.step for step in trace.steps) + 1
    assert last > done
    assert max(trace.totals) + 1 == last
    for length_s in (10, 300, 3600):
        spans = [one for one in trace.rollups.values() if one.length_s == length_s]
        assert sum(one.steps for one in spans) == last
    hours = [one for one in trace.rollups.values() if one.length_s == 3600]
    assert sum(sum(one.bins.values()) for one in hours) == last
    assert sum(one.ops["all_reduce"].calls for one in hours) == 4 * last
    assert all(one.phase_ns.keys() == {"forward", "backward", "step"} for one in hours)


@pytest.mark.parametrize("late", [1, LATE_STEPS, 8, 300])
def test_what_is_known_late_is_in_the_sums(tmp_path: Path, late: int) -> None:
    """An asynchronous collective is waited for, and a stall of the device seen, steps later."""
    run, steps = FastMotion(tmp_path, 8_000_000), 400
    add = run.recorder.outbox.add

    def tell(step: int) -> None:
        of, now_ns = step - late, run.clock()
        if of >= 0:
            add(Collective(-1 - of, 1, of, 64, 16, now_ns, "all_gather", step=of, blocked_ns=5))
            add(Stall("wait", 0, -1 - of, 7, step=of))

    run.recorder.progress.step_listeners.append(tell)
    with run.running():
        run.train(steps)
    trace = read_trace(tmp_path / "trace.rank00000.json")
    for length_s in (300, 3600):
        spans = [one for one in trace.rollups.values() if one.length_s == length_s]
        assert sum(one.ops.get("all_gather", OpTotals()).calls for one in spans) == steps - late
        assert sum(one.stalled_ns for one in spans) == 7 * (steps - late)
        assert sum(one.steps for one in spans) == steps
    if late <= LATE_STEPS:
        assert all(trace.totals[step].stalled_ns == 7 for step in range(steps - late))


def test_sums_have_no_waits_of_a_thread_beside_the_training_as_details_have_none(
    tmp_path: Path,
) -> None:
    """It waits while another thread is at work; threads of the autograd engine do not."""
    run, steps = FastMotion(tmp_path, 8_000_000), 40
    checkpoint, autograd = 7, 8

    def wait(step: int) -> None:
        for op, thread, phase in (
            ("gather", checkpoint, "forward"),
            ("gather", checkpoint, ""),
            ("reduce", autograd, "backward"),
        ):
            now_ns, number = run.clock(), next(run.recorder.ids)
            call = Collective(number, 1, number, 64, 16, now_ns, op, step=step, phase=phase)
            call.thread, call.blocked_ns, call.return_ns, call.done_ns = thread, 5, now_ns, now_ns
            run.recorder.outbox.add(call)

    run.recorder.progress.step_listeners.append(wait)
    with run.running():
        run.train(steps)
    [trace] = read_run(find_run([tmp_path]))
    sums = [(one.ops["gather"], one.ops["reduce"]) for one in trace.totals.values()]
    assert sums == [(OpTotals(2, 128, 0), OpTotals(1, 64, 5))] * steps
    assert {step: one.ops for step, one in sums_of(trace, 0).items()} == {
        step: one.ops for step, one in trace.totals.items()
    }


def test_a_span_that_a_user_names_as_a_phase_is_none(tmp_path: Path) -> None:
    run = FastMotion(tmp_path, 8_000_000)

    def annotate(step: int) -> None:
        now_ns = run.clock()
        run.recorder.outbox.add(Phase(now_ns - 9, now_ns, step, name="step", is_annotation=True))

    run.recorder.progress.step_listeners.append(annotate)
    with run.running():
        run.train(40)
    trace = read_trace(tmp_path / "trace.rank00000.json")
    phases = [one for one in trace.spans if one.name == "step" and not one.is_annotation]
    assert [one.phase_ns["step"] for one in trace.totals.values()] == [
        one.end_ns - one.start_ns for one in phases
    ]


def test_a_writer_that_is_given_up_sums_up_what_it_wrote(tmp_path: Path) -> None:
    run = FastMotion(tmp_path, BUDGET_BYTES)
    with run.running():
        run.train(50)
        run.wait_for_writer()
        run.writer._given_up = True
        run.train(20)
    trace = read_trace(tmp_path / "trace.rank00000.json")
    assert trace.trailer is not None
    assert 50 <= len(trace.steps) == run.writer._step + 1
    assert run.writer.dropped or len(trace.steps) == 70
    for length_s in (10, 300, 3600):
        spans = [one for one in trace.rollups.values() if one.length_s == length_s]
        assert sum(one.steps for one in spans) == len(trace.steps)


def test_sums_have_memory_of_the_process_and_of_the_device(tmp_path: Path) -> None:
    """A hook samples the device at the end of a step, the writer the process."""
    run = FastMotion(tmp_path, BUDGET_BYTES)

    def sample(step: int) -> None:
        device = {ALLOCATED: (1 + (step >= 80)) << 30}
        run.recorder.outbox.add(MemorySample("step", run.clock(), step, device=device))

    run.recorder.progress.step_listeners.append(sample)
    with run.running():
        run.train(100)
    trace = read_trace(tmp_path / "trace.rank00000.json")
    known = {(one.rss_bytes, one.device_bytes) for one in trace.totals.values()}
    assert known == {(10**9, 1 << 30), (10**9, 2 << 30)}
    assert {one.device_bytes for one in trace.rollups.values() if one.length_s == 3600} == {2 << 30}
    assert any(one.kind == "memory" for one in run.writer.alarms.take())
    assert {(one.rss_bytes, one.device_bytes) for one in sums_of(trace, 0).values()} == known
