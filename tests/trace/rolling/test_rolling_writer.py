"""A recording without end: within its budget at any time, with sums of all steps."""

from __future__ import annotations

import re
import shutil
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
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import read_trace
from dsprof.trace.rolling import parts
from dsprof.trace.rolling.packed import Packed, places_of
from dsprof.trace.rolling.parts import KEPT, SERIES, TAILS, part_of
from dsprof.trace.run import find_run, read_run
from dsprof.trace.schema import DeviceStep, Stall
from dsprof.trace.selection import Selection, Since
from dsprof.trace.writing.disk import OwnFile, open_folder
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
    assert any(f"per step describe step {SLOW:,};" in note for note in diagnosis.quality.notes)


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
