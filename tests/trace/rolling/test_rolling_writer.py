"""A recording without end: within its budget at any time, with sums of all steps."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from itertools import pairwise
from pathlib import Path

import pytest

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.epochs import Epochs
from dsprof.analysis.summarise import summarise
from dsprof.analysis.summary import RankClock
from dsprof.diagnosis.build import diagnose
from dsprof.diagnosis.per_step import rank_steps
from dsprof.hooks.device.stalls import MOST_STEP_ENDS
from dsprof.trace import reader
from dsprof.trace.device_counters import ALLOCATED
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import read_trace
from dsprof.trace.rolling import parts
from dsprof.trace.rolling.capture import Captured
from dsprof.trace.rolling.packed import Packed, places_of
from dsprof.trace.rolling.parts import KEPT, SERIES, TAILS, part_of
from dsprof.trace.rolling.step_sums import sums_of
from dsprof.trace.run import find_run, read_run
from dsprof.trace.schema import (
    LATE_STEPS,
    Collective,
    DeviceStep,
    MemorySample,
    OpTotals,
    Phase,
    Stall,
)
from dsprof.trace.selection import Selection, Since
from dsprof.trace.writing.disk import OwnFile, open_folder
from tests.factories import month
from tests.factories.month import STEP_NS, FastMotion, size_of

BUDGET_BYTES = 2_000_000
STEPS = 6000
SLOW, CHANGE = 2000, 4000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("month")
    run = FastMotion(folder, BUDGET_BYTES)
    run.slow = {SLOW: 3.0} | dict.fromkeys(range(CHANGE, STEPS), 1.5)
    sizes: list[int] = []
    with run.running():
        run.train(STEPS, lambda: sizes.append(size_of(folder)))
    assert run.writer.error is None
    assert max(sizes) <= BUDGET_BYTES
    return folder


@pytest.fixture(scope="module")
def trace(folder: Path) -> RankTrace:
    return read_trace(folder / "trace.rank00000.json")


def test_a_rank_has_few_files_that_are_one_trace(folder: Path) -> None:
    assert len(list(folder.iterdir())) <= 8
    assert [path.name for path in find_run([folder]).files] == ["trace.rank00000.json"]


def test_roll_ups_hold_every_step(trace: RankTrace) -> None:
    for length_s in (10, 300, 3600):
        spans = [one for one in trace.rollups.values() if one.length_s == length_s]
        assert sum(one.steps for one in spans) == STEPS
        assert sum(one.calls for one in spans) == 4 * STEPS
        assert max((one.slowest_ns, one.slowest_step) for one in spans)[1] == SLOW
    hours = [one for one in trace.rollups.values() if one.length_s == 3600]
    assert sum(sum(one.bins.values()) for one in hours) == STEPS
    assert sum(one.phase_ns["backward"] for one in hours) > STEPS * STEP_NS // 4


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


def test_the_newest_steps_are_there_without_a_gap(trace: RankTrace) -> None:
    newest = [step.step for step in trace.steps if step.step >= trace.newest_from]
    assert newest == list(range(trace.newest_from, STEPS))
    assert len(newest) > 100
    rows = trace.collectives.step
    assert all((rows == step).sum() == 4 for step in newest)


def test_telling_steps_keep_their_details(trace: RankTrace) -> None:
    assert trace.newest_from > CHANGE + 100
    why = {kept.step: kept.why for kept in trace.kept.values()}
    assert [why[step] for step in range(12)] == ["first"] * 12
    assert why[SLOW] == "slow"
    assert {why.get(CHANGE), why.get(CHANGE + 2)} <= {"slow", "change"}
    assert "sample" in {why[step] for step in why if SLOW < step < CHANGE}
    rows = trace.collectives.step
    assert all((rows == step).sum() == 4 for step in why)
    assert len({one.step for one in trace.steps}) == len(trace.steps)


def test_the_first_step_of_a_new_pace_is_named(folder: Path) -> None:
    findings = diagnose(find_run([folder])).findings
    [change] = [one for one in findings if one.rule == "step-time-change"]
    assert change.steps == (CHANGE,)


@pytest.mark.parametrize(
    ("seconds", "latest"),
    [
        (10, STEPS - 10 / 1.298),
        (600, STEPS - 600 / 1.298),
        (3600, CHANGE - (3600 - (STEPS - CHANGE) * 1.298) / 0.868),
        (7200, 0),
    ],
)
def test_a_time_before_the_end_is_before_that_of_the_last_step(
    folder: Path, seconds: int, latest: float
) -> None:
    """Spans end later than their last step. A step takes 868 ms, after the change 1,298 ms."""
    since = Since(f"{seconds}s", before_end_ns=seconds * 10**9)
    steps = find_run([folder], Selection(since=since)).selection.steps
    assert steps is not None
    assert latest - 20 <= steps.start <= latest + 1  # a span is 10 s


def test_slow_steps_do_not_displace_the_sample(tmp_path: Path) -> None:
    """A twentieth of the steps are slow, before and after a change of pace."""
    run = FastMotion(tmp_path, BUDGET_BYTES)
    pace = [1.0] * CHANGE + [1.5] * (STEPS - CHANGE)
    run.slow = {step: times * (1 + (step % 20 == 7) / 2) for step, times in enumerate(pace)}
    with run.running():
        run.train(STEPS)
    trace = read_trace(tmp_path / "trace.rank00000.json")
    kept = {step.step for step in trace.steps}
    assert kept.issuperset(range(256, STEPS, 256))
    assert any(step % 20 == 7 for step in kept if step < trace.newest_from)
    findings = diagnose(find_run([tmp_path])).findings
    [change] = [one for one in findings if one.rule == "step-time-change"]
    assert change.steps == (CHANGE,)


def test_blocks_that_are_packed_together_are_one_request_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[bytes] = []

    append = OwnFile.append
    monkeypatch.setattr(
        OwnFile, "append", lambda file, data: (requests.append(data), append(file, data))
    )
    packed = Packed(open_folder(tmp_path), "kept.gz", 1_000_000)
    for step in range(20):
        packed.add(range(step, step + 1), (1.0,), b"a line\n")
    packed.flush()
    packed.flush()
    assert len(requests) == 1
    with open(tmp_path / "kept.gz", "rb") as file:
        assert len(places_of(file, range(5, 15))) == 10


def test_a_file_cut_anywhere_costs_only_its_end(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        data = path.read_bytes()
        is_book = path.name.endswith(".json")
        (tmp_path / path.name).write_bytes(data if is_book else data[: len(data) * 2 // 3])
    trace = read_trace(tmp_path / "trace.rank00000.json")
    assert trace.steps
    assert trace.kept
    assert trace.rollups


@pytest.mark.parametrize(
    ("ending", "what"),
    [
        (KEPT, "details of steps that were kept"),
        (SERIES, "sums over time"),
        (parts.STEPS, "sums of single steps"),
        (TAILS[0], "details of the newest steps"),
        (TAILS[1], "details of the newest steps"),
    ],
)
def test_a_file_that_is_missing_is_named(
    folder: Path, tmp_path: Path, ending: str, what: str
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    part_of(copy / "trace.rank00000.json", ending).unlink()
    run = find_run([copy])
    notes = [note for note in diagnose(run).quality.notes if "missing" in note]
    expected = f"The file trace*{ending} of rank 0 is missing, and {what} with it: "
    assert notes == [f"{expected}copy all files of a rank"]
    assert summarise(run)[Endings].ranks[0].is_whole == (ending not in TAILS)


def test_an_archive_misses_nothing(folder: Path, tmp_path: Path) -> None:
    """It holds what found room."""
    with zipfile.ZipFile(tmp_path / "trace.rank00000.earlier.zip", "w") as archive:
        archive.write(folder / "trace.rank00000.json", "trace.rank00000.json")
    [trace] = read_run(find_run([tmp_path]))
    assert not trace.lost_parts


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


@pytest.mark.parametrize("behind", [1, 6, MOST_STEP_ENDS])
def test_a_step_is_judged_when_the_device_has_ended_it(tmp_path: Path, behind: int) -> None:
    run, steps = FastMotion(tmp_path, BUDGET_BYTES), 2000

    def tell(step: int) -> None:
        of, now_ns = step - behind, run.clock()
        if of >= 0:
            run.recorder.outbox.add(DeviceStep(of, now_ns, now_ns))
            run.recorder.outbox.add(Stall("wait", 0, 0, 7, step=of))

    run.recorder.progress.step_listeners.append(tell)
    with run.running():
        run.train(steps)
    trace = read_trace(tmp_path / "trace.rank00000.json")
    ended = range(trace.newest_from, steps - behind)
    assert ended
    assert all(trace.totals[step].stalled_ns == 7 for step in ended)
    kept = trace.kept.keys() - range(trace.newest_from, steps)
    assert len(kept) > 20
    assert kept <= {stall.step for stall in trace.stalls}


def test_a_device_that_tells_nothing_more_is_not_awaited(tmp_path: Path) -> None:
    run = FastMotion(tmp_path, BUDGET_BYTES)
    with run.running():
        run.recorder.outbox.add(DeviceStep(0, 0, 0))
        run.train(2000)
    assert read_trace(tmp_path / "trace.rank00000.json").kept.keys() >= {*range(12)}


def test_steps_are_in_order_whichever_tail_is_the_newer(
    folder: Path, trace: RankTrace, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "trace.rank00000.json"
    one, other = (part_of(path, ending) for ending in TAILS)
    one.rename(tmp_path / "kept aside")
    other.rename(one)
    (tmp_path / "kept aside").rename(other)
    swapped = read_trace(path)
    numbers = [step.step for step in trace.steps]
    assert numbers == sorted(numbers)
    assert swapped.steps == trace.steps
    assert swapped.collectives.step.tolist() == trace.collectives.step.tolist()
    assert not swapped.collectives.is_open.any()
    assert Epochs.collect(swapped, RankClock()).span.steps == (0, STEPS - 1)


def test_chosen_steps_are_read_alone(folder: Path) -> None:
    diagnosis = diagnose(find_run([folder], Selection(steps=range(SLOW, SLOW + 1))))
    assert [row.step for row in diagnosis.steps.rows] == [SLOW]
    assert (diagnosis.run.steps, diagnosis.history.steps) == (1, 0)
    assert diagnosis.quality.writer_cost_share is None


def test_figures_of_past_steps_are_of_those_that_were_not_kept_for_being_slow(folder: Path) -> None:
    chosen = range(100, CHANGE - 100)
    diagnosis = diagnose(find_run([folder], Selection(steps=chosen)))
    kept = [row.step for row in diagnosis.steps.rows]
    measured = [row.step for row in diagnosis.steps.rows if row.is_measured]
    assert SLOW in kept
    assert len(measured) > 20
    assert len({later - step for step, later in pairwise(measured)}) == 1
    assert set(measured) < set(kept)
    assert (diagnosis.history.steps, diagnosis.history.detailed_steps) == (len(chosen), len(kept))
    assert f"details of {len(kept)} of 3,800 steps" in diagnosis.quality.line
    (note,) = (note for note in diagnosis.quality.notes if "are kept" in note)
    assert f"describe {len(measured)} evenly spaced ones" in note


def test_a_slow_step_that_is_the_only_one_kept_is_measured(folder: Path) -> None:
    diagnosis = diagnose(find_run([folder], Selection(steps=range(SLOW, SLOW + 5))))
    assert [row.step for row in diagnosis.steps.rows if row.is_measured] == [SLOW]
    assert diagnosis.history.steps == 5


@pytest.mark.parametrize(
    ("steps", "most", "ending"), [(range(9), 1, KEPT), (range(STEPS - 9, STEPS), 1, ".tail")]
)
def test_parts_that_cannot_hold_chosen_steps_are_not_read(folder, monkeypatch, steps, most, ending):
    read = []
    chunks = reader._part_chunks
    monkeypatch.setattr(
        reader, "_part_chunks", lambda part, *of: read.append(part) or chunks(part, *of)
    )
    trace = read_trace(folder / "trace.rank00000.json", steps)
    assert len(read) == most
    assert ending in read[0].name
    assert set(steps) <= {one.step for one in trace.steps}


@pytest.mark.parametrize("count", [1, 40, 400])
def test_any_of_the_newest_steps_are_those_of_the_whole(folder, trace, count):
    for first in range(trace.newest_from, STEPS, 97):
        part = read_trace(folder / "trace.rank00000.json", range(first, first + count))
        wanted = range(first, min(first + count, STEPS))
        assert sorted({one.step for one in part.steps} & {*wanted}) == [*wanted]
        rows = part.collectives.step
        assert all((rows == step).sum() == 4 for step in wanted)


def test_of_a_packed_file_only_what_is_of_chosen_steps_is_unpacked(folder: Path, tmp_path: Path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    kept = tmp_path / "trace.rank00000.kept.gz"
    data = kept.read_bytes()
    with kept.open("rb") as file:
        ((begin, end),) = places_of(file, range(SLOW, SLOW + 1))
    others = re.sub(rb"(?s)(?<=ds\x14\0.{20}).{16}", bytes(16), data[:begin])
    kept.write_bytes(others + data[begin:end])
    trace = read_trace(tmp_path / "trace.rank00000.json", range(SLOW, SLOW + 1))
    assert [step.step for step in trace.steps if step.step == SLOW] == [SLOW]
    assert trace.broken_lines == 0
    assert len(read_trace(tmp_path / "trace.rank00000.json").kept) == 0


def test_figures_are_of_steps_that_all_ranks_still_have(tmp_path: Path) -> None:
    for rank, budget_bytes in enumerate((BUDGET_BYTES, BUDGET_BYTES // 2)):
        run = FastMotion(tmp_path, budget_bytes, rank)
        with run.running():
            run.train(2000)
    found = find_run([tmp_path])
    own = [trace.newest_from for trace in map(read_trace, found.files)]
    assert own[0] < own[1]
    diagnosis = diagnose(found)
    assert diagnosis.history.newest_from == own[1]
    assert sum(row.calls for row in diagnosis.communication) == 4 * rank_steps(diagnosis)


def test_files_stay_below_the_limit_of_the_process(tmp_path: Path) -> None:
    program = """
import resource, sys
from pathlib import Path
from tests.factories.month import FastMotion
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
for start in range(2):
    run = FastMotion(Path(sys.argv[1]), 8_000_000, start=start)
    with run.running():
        run.train(1000)
"""
    subprocess.run([sys.executable, "-c", program, tmp_path], check=True)
    run = find_run([tmp_path])
    for epoch in run.epochs:
        trace = read_trace(epoch.files[0])
        assert trace.trailer is not None
        assert (trace.trailer.disk_error, trace.trailer.lost_steps) == ("", 0)
        hours = [one for one in trace.rollups.values() if one.length_s == 3600]
        assert sum(one.steps for one in hours) == 1000
    assert [epoch.files[0].parent.name for epoch in run.epochs[:-1]] == [
        "trace.rank00000.earlier.zip"
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


def test_a_rank_whose_folder_was_removed_says_so_once(tmp_path: Path) -> None:
    run = FastMotion(tmp_path / "out", BUDGET_BYTES)
    said: list[str] = []
    run.writer._source.warn = said.append
    with run.running():
        run.train(50)
        run.wait_for_tails()
        shutil.rmtree(tmp_path / "out")
        run.train(200)
    assert run.writer.error is None
    (one,) = said
    lost = "trace.rank00000.json was removed, so the recording of rank 0 is lost."
    assert one.endswith(f"{lost} Leave its folder in place until the job ends")


def test_a_rank_whose_trace_was_cut_says_so_once(tmp_path: Path) -> None:
    run = FastMotion(tmp_path, BUDGET_BYTES)
    said: list[str] = []
    run.writer._source.warn = said.append
    with run.running():
        run.train(50)
        run.wait_for_writer()  # what it wrote behind the cut would fill the file again
        os.truncate(tmp_path / "trace.rank00000.json", 10)
        run.train(200)
    (one,) = said
    assert "was cut by another program, so the recording of rank 0 is lost" in one


def test_a_folder_that_was_moved_keeps_its_recording(tmp_path: Path) -> None:
    """Its name may be that of the folder of another job by then."""
    here, moved = tmp_path / "out", tmp_path / "moved"
    run = FastMotion(here, BUDGET_BYTES)
    with run.running():
        run.train(50)
        run.wait_for_tails()
        here.rename(moved)
        other = FastMotion(here, BUDGET_BYTES, start=1)
        with other.running():
            other.train(50)
        files = {path.name: path.read_bytes() for path in here.iterdir()}
        run.train(STEPS)
        run.writer.wanted.append(Captured("moved", STEPS - 10, 4))
        run.train(20)
    assert run.writer.error is None
    assert {path.name: path.read_bytes() for path in here.iterdir()} == files
    assert len([*moved.iterdir()]) == len(files)
    kept = read_trace(moved / "trace.rank00000.json").kept
    assert {*range(STEPS - 10, STEPS - 6)} <= kept.keys()
    assert min(kept) < 12  # from before it was moved


def test_files_show_that_they_are_in_use(tmp_path: Path) -> None:
    """In a temporary folder, those not written for days are removed."""
    run = FastMotion(tmp_path, 100_000_000)
    with run.running():
        run.train(50)
        run.wait_for_tails()
        for path in tmp_path.iterdir():
            os.utime(path, (0, 0))
        run.train(3700 * 10**9 // month.STEP_NS)
        run.wait_for_writer()
        assert [path.name for path in tmp_path.iterdir() if path.stat().st_mtime == 0] == []


@pytest.mark.parametrize("steps", [0, 40])
def test_a_step_without_end_has_its_newest_details(tmp_path: Path, steps: int) -> None:
    """It may hang, or be an evaluation; a server that runs forwards is in its first step."""
    run = FastMotion(tmp_path, 400_000)
    path = tmp_path / "trace.rank00000.json"
    with run.running():
        run.train(steps)
        run.recorder.progress.enter("forward")
        for _ in range(3000):
            run._communicate("forward")
    rows = read_trace(path).collectives
    assert len(rows.step[rows.step == steps]) > 100
    assert rows.id.max() == next(run.recorder.ids) - 1


def test_a_step_that_is_not_whole_is_not_among_the_newest(tmp_path: Path) -> None:
    run = FastMotion(tmp_path, 400_000)
    with run.running():
        run.train(20)
        run.recorder.progress.enter("forward")
        for _ in range(3000):
            run._communicate("forward")
        run.train(3)
    trace = read_trace(tmp_path / "trace.rank00000.json")
    assert trace.newest_from == 21
    assert {*trace.collectives.step.tolist()} >= {21, 22}
    assert 20 not in trace.collectives.step


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
