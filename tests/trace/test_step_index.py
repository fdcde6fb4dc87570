"""Some steps of a long trace are read without the rest of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.scale_runs import Size, sums, write_sums
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import read_trace
from dsprof.trace.rolling.parts import TAILS, part_of
from dsprof.trace.schema import DeviceStep, Group, Site, Stall
from dsprof.trace.selection import Since, step_cutting
from dsprof.trace.selection.since import first_step_since
from dsprof.trace.selection.step_cutting import cut_to_steps
from dsprof.trace.source import Source
from dsprof.trace.writing import step_index
from tests.trace.written_run import Run, collective, step_end

STEPS, CALLS = 1000, 10
WANTED = range(600, 610)


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many bytes each call reads."""
    read, end, sizes = Source.read, Source.end, list[int]()

    def counted(source: Source, size: int) -> bytes:
        data = read(source, size)
        sizes.append(len(data))
        return data

    def counted_end(source: Source, size: int) -> bytes:
        data = end(source, size)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(Source, "read", counted)
    monkeypatch.setattr(Source, "end", counted_end)
    return sizes


@pytest.fixture
def long_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trace of 4 MB, in which a site is described far before the steps that name it."""
    monkeypatch.setattr(step_index, "_SPACING_BYTES", 1 << 15)
    monkeypatch.setattr(step_index, "WRITTEN_EVERY_BYTES", 1 << 19)
    run = Run(tmp_path)
    run.writer._drain = with_sites(run, run.writer._drain)
    run.definitions.append(Group(1, "key", "world", ranks=[0, 1], size=2))
    run.close()
    return run.writer.path


def with_sites(run: Run, drain):
    """Give the records in four parts, before each of which a call site is met."""
    parts = iter(range(4))

    def drained() -> None:
        for part in parts:
            run.definitions.append(Site(part + 1, "train.py", part + 1))
            for step in range(part * STEPS // 4, (part + 1) * STEPS // 4):
                first = step * CALLS
                run.records += [
                    collective(first + one, max(step - 2 * (one == 0), 0), site=part + 1)
                    for one in range(CALLS)
                ]
                run.records.append(step_end(step))
            drain()
        drain()

    return drained


def facts(trace: RankTrace) -> tuple[object, ...]:
    rows = trace.collectives
    order = np.argsort(rows.id)
    times = (rows.id, rows.step, rows.issue_ns, rows.site)
    columns = [column[order].tolist() for column in times]
    return (*columns, trace.steps, trace.sites, trace.groups, trace.trailer, trace.broken_lines)


def test_steps_are_read_with_what_they_name_and_without_the_rest(long_trace, read_bytes):
    whole = read_trace(long_trace)
    cut_to_steps(whole, WANTED)
    read_bytes.clear()
    part = read_trace(long_trace, WANTED)
    cut_to_steps(part, WANTED)
    assert facts(part) == facts(whole)
    assert len(part.collectives) == CALLS * len(WANTED)
    assert sum(read_bytes) < long_trace.stat().st_size / 4


@pytest.mark.parametrize("wanted", [range(2), range(990, 1000), range(5000, 6000), range(1000)])
def test_any_steps_are_those_of_the_whole(long_trace, wanted):
    whole, part = read_trace(long_trace), read_trace(long_trace, wanted)
    cut_to_steps(whole, wanted)
    cut_to_steps(part, wanted)
    assert facts(part) == facts(whole)


@pytest.fixture
def behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trace of a device that is eight steps behind, and one stream of it another one."""
    monkeypatch.setattr(step_index, "_SPACING_BYTES", 1 << 13)
    run = Run(tmp_path)
    for step in range(STEPS):
        run.records += [step_end(step), Stall("wait", 1, 0, 9, step=step + 1)]
        if (passed := step - 8) >= 0:
            run.records += [collective(passed * CALLS + one, passed) for one in range(CALLS)]
            run.records.append(DeviceStep(passed, passed, passed + 1))
            run.records.append(Stall("wait", 1, passed * CALLS, 9, step=passed - 1))
    run.close()
    return run.writer.path


def test_steps_that_a_device_passed_late_are_those_of_the_whole(behind):
    for first in range(200, 300):
        part = read_trace(behind, range(first, first + 5))
        cut_to_steps(part, range(first, first + 5))
        assert [one.step for one in part.steps] == [*range(first, first + 5)]
        assert len(part.collectives) == 5 * CALLS
        assert len(part.stalls) == 2 * 5


def test_a_time_is_found_without_the_rest(long_trace, read_bytes):
    whole = read_trace(long_trace)
    for step in (0, 333, 600, 998):
        read_bytes.clear()
        end_ns = whole.steps[step].end_ns
        since = Since("", epoch_ns=whole.header.started_epoch_ns + end_ns)
        found = first_step_since(long_trace, 5, since, lambda steps: read_trace(long_trace, steps))
        assert found == step + 1
        assert sum(read_bytes) < long_trace.stat().st_size / 2


@pytest.mark.parametrize(("more_bytes", "most_read"), [(20, 0.7), (250_000, 0.35)])
def test_of_a_file_that_a_killed_process_left_only_the_end_is_read_as_well(
    long_trace, read_bytes, monkeypatch, more_bytes, most_read
):
    data = long_trace.read_bytes()
    places = [found.start() for found in re.finditer(b'{"cat":"index"', data)]
    long_trace.write_bytes(data[: places[4] + more_bytes])
    monkeypatch.setattr(step_cutting, "_LOOKS_BACK_BYTES", (1 << 10, 1 << 18, 1 << 20))
    whole = read_trace(long_trace)
    ended = [(one.end_ns, one.step) for one in whole.steps]
    cut_to_steps(whole, WANTED)
    read_bytes.clear()
    part = read_trace(long_trace, WANTED)
    cut_to_steps(part, WANTED)
    assert facts(part) == facts(whole)
    assert sum(read_bytes) < len(data) * most_read
    since = Since("", before_end_ns=ended[-1][0] - ended[600][0])
    found = first_step_since(long_trace, 5, since, lambda steps: read_trace(long_trace, steps))
    assert found == 601


def test_a_cut_file_without_an_index_is_searched_once_and_read_whole(long_trace, read_bytes):
    data = long_trace.read_bytes()
    long_trace.write_bytes(data[: data.index(b'{"cat":"index"')])
    whole = read_trace(long_trace)
    cut_to_steps(whole, WANTED)
    read_bytes.clear()
    part = read_trace(long_trace, WANTED)
    cut_to_steps(part, WANTED)
    assert facts(part) == facts(whole)
    assert sum(read_bytes) < 2.5 * long_trace.stat().st_size


def test_the_tail_of_a_rolling_recording_is_not_searched(tmp_path, read_bytes):
    """A small one is read twice: first to find a step that ended in it."""
    size = Size(1, 400, 9)
    write_sums(tmp_path, size, 0, sums(size, is_slow=False))
    book = tmp_path / "trace.rank00000.json"
    tail = part_of(book, TAILS[0]).stat().st_size
    assert tail > 10 * book.stat().st_size
    part = read_trace(book, range(390, 395))
    cut_to_steps(part, range(390, 395))
    assert [one.step for one in part.steps] == [*range(390, 395)]
    assert sum(read_bytes) < 2.5 * tail


@pytest.mark.parametrize(
    "index",
    [
        b'{"at_bytes":[9,5],"steps":[1,2],"ended_ns":[1,2]}',
        b'{"at_bytes":[99999999999],"steps":[1],"ended_ns":[1]}',
        b'{"at_bytes":[5],"steps":[],"ended_ns":[]}',
        b'{"at_bytes":[5],"steps":[1],"ended_ns":[1],"others":[[7,3]]}',
        b'{"at_bytes":["x"]}',
        b'{"at_bytes":[5],"steps":[1],"ended_ns":[1]},"ph":"\xff"',
        b"{}",
    ],
)
def test_an_index_that_does_not_fit_its_file_is_not_used(long_trace, index):
    data = long_trace.read_bytes()
    at = data.rindex(b'{"cat":"index"')
    end = data.index(b"\n", at)
    long_trace.write_bytes(data[:at] + b'{"cat":"index","args":' + index + b"}," + data[end:])
    part = read_trace(long_trace, WANTED)
    cut_to_steps(part, WANTED)
    assert len(part.collectives) == CALLS * len(WANTED)


def test_an_index_stays_short(monkeypatch):
    monkeypatch.setattr(step_index, "_SPACING_BYTES", 1)
    builder = step_index.IndexBuilder(0)
    for at in range(20_000):
        builder.keep(at, at + 1)
        builder.mark(at, at, at)
    index = builder.built(20_000, 20_000, 20_000)
    assert len(index.steps) <= 1025
    assert len(index.others) <= 256
    assert index.at_bytes[-1] == 20_000
    assert index.others[0][0] == 0
    assert index.others[-1][1] == 20_000
    assert step_cutting.needed_parts(index, range(5, 6))
