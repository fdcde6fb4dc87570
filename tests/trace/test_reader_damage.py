"""What is left of a trace that is cut or damaged in a line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from dsprof.analysis.summarise import summarise
from dsprof.trace.lines import LINES
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.readers.base import Facts, OneRankReader
from dsprof.trace.readers.plugin_reader import accepted
from dsprof.trace.run import find_run, read_run
from dsprof.trace.schema import Header, StepTotals
from tests.factories import trace as make
from tests.factories.trace_files import encode, run_events
from tests.fuzzing import formats

NATIVE = formats.FORMATS["native"]()
WHOLE = NATIVE.whole
HEADER_END = WHOLE.index(b",\n{", 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.rank00000.json"


def read(path: Path, data: bytes) -> RankTrace | None:
    (trace,) = formats.read(NATIVE, path, data) or [None]
    return trace


def is_complete(line: bytes) -> bool:
    try:
        return bool(json.loads(line.strip(b",")))
    except ValueError:
        return False


def test_the_whole_file_is_read_whole(path: Path) -> None:
    trace = read(path, WHOLE)
    assert trace is not None
    assert len(trace.steps) == len(trace.collectives) == 4
    assert trace.trailer is not None
    assert trace.broken_lines == 0


def test_a_file_cut_anywhere_gives_every_event_before_the_cut(path: Path) -> None:
    for cut in range(HEADER_END, len(WHOLE)):
        trace = read(path, WHOLE[:cut])
        assert trace is not None, cut
        lines = list(filter(is_complete, WHOLE[:cut].split(b"\n")))
        assert len(trace.steps) == sum(b'"cat":"step"' in line for line in lines), cut
        assert len(trace.collectives) == sum(b'"cat":"comm"' in line for line in lines), cut
        assert trace.broken_lines <= 1, cut


def test_a_file_cut_in_its_header_is_no_trace(path: Path) -> None:
    for cut in range(HEADER_END - 1):
        assert read(path, WHOLE[:cut]) is None, cut


def test_a_number_beyond_64_bits_loses_its_line_alone(path: Path) -> None:
    data = WHOLE.replace(b'"nbytes":1048576', b'"nbytes":' + b"9" * 30, 1)
    assert data != WHOLE
    trace = read(path, data)
    assert trace is not None
    assert len(trace.collectives) == 3
    assert trace.broken_lines == 1


def test_a_deeply_nested_line_is_lost_alone(path: Path) -> None:
    nested = b'{"cat":"environment","args":' + b"[" * 200_000 + b"]" * 200_000 + b"},\n"
    trace = read(path, WHOLE[: HEADER_END + 2] + nested + WHOLE[HEADER_END + 2 :])
    assert trace is not None
    assert len(trace.steps) == 4
    assert trace.broken_lines == 1


def test_a_gzip_file_cut_anywhere(path: Path) -> None:
    packed = gzip.compress(WHOLE)
    for cut in range(len(packed)):
        read(path, packed[:cut])
    trace = read(path, packed)
    assert trace is not None
    assert len(trace.steps) == 4


def test_a_record_that_ends_before_it_begins_is_damage(tmp_path: Path) -> None:
    spans = [make.span("forward", 20, 10), make.span("forward", 10, 10)]
    records = {
        "step": [make.step(1, 100, 50), make.step(2, 100, 200), make.step(3, 300, 200)],
        "phase": spans,
        "flush": [make.flush(1, 30, -5)],
        "fetch": [make.fetch(1, 30, -5)],
        "stall": [make.stall(make.hanging("all_reduce", 30), "wait", 30, 20)],
        "device_step": [make.device_step(1, 100, 50)],
        "copy": [make.copy(30, -5)],
        "totals": [StepTotals(1, 100, 50)],
    }
    events = [LINES[cat](name="forward", args=one) for cat, held in records.items() for one in held]
    for rank in range(2):
        data = encode([*run_events(make.header(rank), 1)[:-1], *events])
        (tmp_path / f"trace.rank{rank:05d}.json").write_bytes(data)
    run = find_run([tmp_path])
    summarise(run)
    for trace in read_run(run):
        assert [step.step for step in trace.steps] == [0, 2]
        assert len(trace.spans) == 1
        assert trace.broken_lines == len(events) - 2


def test_a_plugin_reads_no_step_that_ends_before_it_begins(tmp_path: Path) -> None:
    class Careless(OneRankReader):
        name, tells = "careless", Facts.TIMELINE

        def recognises(self, start: bytes) -> bool:
            return True

        def read_header(self, path: Path) -> Header:
            return make.header()

        def read_trace(self, path: Path) -> RankTrace:
            return make.rank_trace(steps=[make.step(0, 0, 100), make.step(1, 100, 50)])

    (trace,) = accepted(Careless(), "package 1").read_traces(tmp_path / "file")
    assert [step.step for step in trace.steps] == [0]
    assert trace.broken_lines == 1
