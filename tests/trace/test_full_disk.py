"""While the disk refuses data, steps are lost, but what was written is kept."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest

from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import read_trace
from dsprof.trace.rolling.parts import PARTS, STATE
from dsprof.trace.schema import Note
from dsprof.trace.writing import writer as module
from dsprof.trace.writing.disk import OwnFile
from dsprof.trace.writing.outage import Outage
from tests.factories.month import FastMotion
from tests.factories.small_disk import SmallDisk, SmallFiles
from tests.trace.written_run import Run, collective, step_end

FULL = "No space left on device"
PLENTY_BYTES = 100_000_000


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.001)
    monkeypatch.setattr(module, "_SHORTEST_WAIT_S", 0.001)


class Training:
    """Steps of three collectives; the writer of a default recording gets one step at a time."""

    def __init__(self, folder: Path) -> None:
        self._run = Run(folder)
        self.records, self.unfinished = self._run.records, self._run.unfinished
        self.writer = self._run.writer
        self.warnings: list[str] = []
        self.writer._source.warn = self.warnings.append
        self.steps = 0
        self.writer.start()

    def step(self) -> None:
        first = 3 * self.steps
        self._run.records.extend(collective(first + n, self.steps) for n in range(3))
        self._run.records.append(step_end(self.steps))
        self.steps += 1
        while self._run.records and not self.writer.is_done:
            time.sleep(0.001)

    def step_until(self, happened: Callable[[], object]) -> None:
        for _ in range(20_000):
            if happened():
                return
            self.step()
        pytest.fail("it did not happen")

    def loses_more(self, what: str) -> Callable[[], object]:
        before = getattr(self.writer, what)
        return lambda: getattr(self.writer, what) > before

    def close(self) -> RankTrace:
        return self._run.close_started()


def wait_until(happened: Callable[[], object]) -> None:
    for _ in range(20_000):
        if happened():
            return
        time.sleep(0.001)
    pytest.fail("it did not happen")


def cannot_write_to(folder: Path) -> str:
    return f"rank 0 cannot write to {folder}: {FULL}. Steps are lost until it can"


def test_steps_are_lost_while_the_disk_is_full_and_recorded_afterwards(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 20_000)
    with disk.mounted():
        run = Training(tmp_path)
        run.step_until(lambda: run.writer.disk_error)
        for _ in range(20):
            run.step()
        disk.room_bytes = PLENTY_BYTES
        run.step_until(lambda: run.writer.lost_steps)
        for _ in range(10):
            run.step()
        trace = run.close()
    recorded = [step.step for step in trace.steps]
    lost = run.steps - len(recorded)
    gap = next(a for a, b in pairwise(recorded) if b != a + 1)
    assert lost == run.writer.lost_steps >= 20
    assert recorded == [*range(gap + 1), *range(gap + 1 + lost, run.steps)]
    assert [(trace.collectives.step == step).sum() for step in recorded] == [3] * len(recorded)
    assert trace.broken_lines == 0
    assert trace.trailer is not None
    assert [note.text for note in trace.notes] == [
        f"the disk refused records of steps {gap + 1:,} to {gap + lost:,}: {FULL}"
    ]
    assert run.warnings == [cannot_write_to(tmp_path)]


def test_each_outage_of_a_disk_is_counted_once(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 20_000)
    with disk.mounted():
        run = Training(tmp_path)
        for room_bytes in (1_300_000, 2_700_000, PLENTY_BYTES):
            run.step_until(run.loses_more("dropped"))
            disk.room_bytes = room_bytes
            run.step_until(run.loses_more("lost_steps"))
        run.step()
        trace = run.close()
    recorded = {step.step for step in trace.steps}
    assert len(trace.notes) == 3
    assert len(recorded) + run.writer.lost_steps == run.steps
    assert trace.broken_lines == 0


def test_a_trace_on_a_disk_that_stays_full_ends_with_a_trailer(tmp_path: Path) -> None:
    with SmallDisk(tmp_path, 150_000).mounted():
        run = Training(tmp_path)
        run.step_until(lambda: run.writer.disk_error)
        for _ in range(20):
            run.step()
        trace = run.close()
    recorded = [step.step for step in trace.steps]
    assert recorded == [*range(len(recorded))]
    assert len(recorded) + run.writer.lost_steps == run.steps
    assert trace.broken_lines == 0
    assert trace.trailer is not None
    [note] = trace.notes
    lost = f"steps {len(recorded):,} to {run.steps - 1:,}"
    assert note.text == f"the disk refused records of {lost}: {FULL}"


def test_a_disk_that_stays_full_from_the_start_is_reported_at_once(tmp_path: Path) -> None:
    with SmallDisk(tmp_path, 10).mounted():
        run = Training(tmp_path)
        run.step_until(lambda: run.warnings)
        assert run.warnings == [cannot_write_to(tmp_path)]
        run.writer.close(lambda: pytest.fail("there is no trace"), [])
    assert isinstance(run.writer.error, OSError)
    assert run.warnings[1:] == [f"rank 0 records nothing in {tmp_path}: {FULL}"]
    assert list(tmp_path.iterdir()) == []


def test_a_recording_begins_once_a_disk_that_was_full_at_the_start_has_room(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 10)
    with disk.mounted():
        run = Training(tmp_path)
        run.step_until(lambda: run.steps > 20)
        disk.room_bytes = PLENTY_BYTES
        run.step_until(lambda: run.writer.lost_steps)
        for _ in range(10):
            run.step()
        trace = run.close()
    lost = run.writer.lost_steps
    assert lost > 20
    assert [step.step for step in trace.steps] == [*range(lost, run.steps)]
    [note] = trace.notes
    assert note.text == f"the disk refused records of steps 0 to {lost - 1:,}: {FULL}"
    assert run.warnings == [cannot_write_to(tmp_path)]


@pytest.mark.parametrize("ending", [".json", ".kept.gz", ".series.gz", ".tail0", ".tail1"])
@pytest.mark.parametrize("is_for_good", [True, False])
def test_a_recording_without_end_begins_once_it_gets_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, is_for_good: bool
) -> None:
    """Without inodes or descriptors. A part of the files would look like those of a killed rank."""
    create, refused = os.open, [ending]

    def refuse(path: str | Path, *how: int, **folder: int | None) -> int:
        if str(path).endswith(tuple(refused)):
            raise OSError(errno.ENOSPC, FULL)
        return create(path, *how, **folder)

    monkeypatch.setattr(os, "open", refuse)
    run = FastMotion(tmp_path, PLENTY_BYTES)
    said: list[str] = []
    described: list[Note] = []
    run.writer._source.warn = said.append
    run.writer._source.prepare = lambda: described.append(Note("described")) or described
    with run.running():
        while not run.writer.dropped:
            run.train(1)
        if not is_for_good:
            refused.clear()
            while not (run.writer.lost_steps or run.writer.error):
                run.train(1)
            run.train(100)
    assert said[0] == cannot_write_to(tmp_path)
    if is_for_good:
        assert said[1:] == [f"rank 0 records nothing in {tmp_path}: {FULL}"]
        assert list(tmp_path.iterdir()) == []
        return
    lost = run.writer.lost_steps
    trace = read_trace(tmp_path / "trace.rank00000.json")
    assert sorted(step.step for step in trace.steps) == [*range(lost, run.steps)]
    assert [note.text for note in trace.notes] == [
        "described",
        f"the disk refused records of steps 0 to {lost - 1:,}: {FULL}",
    ]
    assert {path.name for path in tmp_path.iterdir()} == {
        f"trace.rank00000{one}" for one in (".json", *PARTS) if one != STATE
    }
    assert said[1:] == []


def test_a_single_lost_step_is_named() -> None:
    outage = Outage(OSError(errno.ENOSPC, FULL), written=4, reached=5, whole_from=0, turns=1)
    assert outage.text() == f"the disk refused records of step 5: {FULL}"


def test_a_step_of_which_a_part_was_refused_is_lost_as_a_whole(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, PLENTY_BYTES)
    with disk.mounted():
        run = Training(tmp_path)
        for _ in range(3):
            run.step()
        wait_until(lambda: run.writer._written_step == 2)
        disk.room_bytes = 0
        run.records.append(collective(100, 3))
        wait_until(lambda: run.writer.disk_error)
        disk.room_bytes = PLENTY_BYTES
        wait_until(lambda: run.writer._outage.has_room)
        run.records.extend([collective(101, 3), step_end(3)])
        run.steps = 4
        run.step()
        trace = run.close()
    assert [step.step for step in trace.steps] == [0, 1, 2, 4]
    assert (trace.collectives.step == 3).sum() == 0
    assert run.writer.lost_steps == 1


def test_what_hangs_after_a_full_disk_is_written(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, 20_000)
    probes: list[int] = []
    with disk.mounted(), patch.object(OwnFile, "check_room", lambda _: probes.append(1)):
        run = Training(tmp_path)
        run.step_until(lambda: run.writer.disk_error)
        disk.room_bytes = PLENTY_BYTES
        wait_until(lambda: probes)
        run.unfinished.append(collective(10**6, run.steps, issue_ns=1, done_ns=0))
        wait_until(lambda: run.writer._opened)
        trace = run.close()
    assert probes == [1]
    assert 10**6 in trace.collectives.id


def outlive(folder: Path, steps: int) -> FastMotion:
    """Train without end on a disk that gets full, and so many steps after it has room again."""
    disk = SmallDisk(folder, 300_000)
    run = FastMotion(folder, 2_000_000)
    with disk.mounted(), run.running():
        while not run.writer.disk_error:
            run.train(100)
        run.train(500)
        disk.room_bytes = PLENTY_BYTES
        while not run.writer.lost_steps:
            run.train(100)
        run.train(steps)
    return run


def test_spans_of_a_killed_recording_count_each_step_once_after_a_full_disk(
    tmp_path: Path,
) -> None:
    run = outlive(tmp_path, 700)
    book = tmp_path / "trace.rank00000.json"
    book.write_bytes(b"".join(book.read_bytes().splitlines(keepends=True)[:-2]))
    trace = read_trace(book)
    assert trace.trailer is None
    summed = {
        length_s: sum(one.steps for one in trace.rollups.values() if one.length_s == length_s)
        for length_s in (10, 300, 3600)
    }
    assert summed == dict.fromkeys(summed, run.steps - run.writer.lost_steps)


def test_a_tail_that_is_refused_beside_a_book_that_is_not_ends_nothing(tmp_path: Path) -> None:
    run = FastMotion(tmp_path, 2_000_000)
    sizes: list[int] = []
    limited = SmallFiles(tmp_path, 50_000)
    with limited.mounted(), run.running():
        while not run.writer.disk_error:
            run.train(100)
        for _ in range(20):
            run.train(100)
            sizes.append(len(run.writer._tails._unwritten))
        limited.room_bytes = PLENTY_BYTES
        while not run.writer.lost_steps:
            run.train(100)
    assert max(sizes) == sizes[0]
    trace = read_trace(tmp_path / "trace.rank00000.json")
    assert len(trace.notes) == 1
    assert trace.broken_lines == 0


def test_a_recording_without_end_outlives_a_full_disk(tmp_path: Path) -> None:
    run = outlive(tmp_path, 3000)
    assert run.writer.error is None
    trace = read_trace(tmp_path / "trace.rank00000.json")
    assert trace.broken_lines == 0
    assert trace.trailer is not None
    [note] = trace.notes
    assert note.text.endswith(FULL)
    for length_s in (10, 300, 3600):
        spans = [one for one in trace.rollups.values() if one.length_s == length_s]
        summed = sum(one.steps for one in spans)
        assert summed == run.steps - run.writer.lost_steps
    newest = sorted(step.step for step in trace.steps if step.step >= trace.newest_from)
    [(first, last)] = re.findall(r"steps ([\d,]+) to ([\d,]+)", note.text)
    lost = range(int(first.replace(",", "")), int(last.replace(",", "")) + 1)
    assert len(lost) == run.writer.lost_steps
    assert newest == [n for n in range(trace.newest_from, run.steps) if n not in lost]
    assert len(newest) > 100


def test_a_recording_without_end_on_a_disk_that_stays_full_ends_with_a_trailer(
    tmp_path: Path,
) -> None:
    run = FastMotion(tmp_path, 2_000_000)
    with SmallDisk(tmp_path, 300_000).mounted(), run.running():
        while not run.writer.disk_error:
            run.train(100)
        run.train(500)
    assert run.writer.error is None
    trace = read_trace(tmp_path / "trace.rank00000.json")
    assert trace.broken_lines == 0
    assert trace.trailer is not None
    assert run.writer.lost_steps >= 500
    hours = [one for one in trace.rollups.values() if one.length_s == 3600]
    assert sum(one.steps for one in hours) > 50
