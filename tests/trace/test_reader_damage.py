"""What is left of a trace that is cut or damaged in a line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from dsprof.trace.rank_trace import RankTrace
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
        steps = [line for line in WHOLE[:cut].split(b"\n") if b'"cat":"step"' in line]
        assert len(trace.steps) == sum(map(is_complete, steps)), cut


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
