"""The native reader takes whatever a killed process left behind."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest

from dsprof.errors import TraceError
from dsprof.trace.format import (
    CollectiveArgs,
    CollectiveEvent,
    GroupArgs,
    GroupEvent,
    Header,
    HeaderEvent,
    Trailer,
    TrailerEvent,
)
from dsprof.trace.reader import read_header, read_trace


def lines(collectives: int = 20) -> list[bytes]:
    header = HeaderEvent(args=Header(1, "run", 3, 8, "host", 1, 5, 7))
    group = GroupEvent(args=GroupArgs(1, "key", "world"))
    comm = [
        CollectiveEvent(args=CollectiveArgs(n, 1, n, 64, 16, n * 1000), name="all_reduce")
        for n in range(collectives)
    ]
    return [msgspec.json.encode(event) for event in (header, group, *comm)]


def whole() -> bytes:
    trailer = msgspec.json.encode(TrailerEvent(args=Trailer("exit")))
    return b"[\n" + b",\n".join([*lines(), trailer]) + b"\n]\n"


def complete_collectives(data: bytes) -> int:
    """Count the lines that are whole, with a parser that is not ours."""
    found = 0
    for line in data.splitlines():
        try:
            found += json.loads(line.rstrip(b","))["cat"] == "comm"
        except (ValueError, TypeError):
            continue
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.rank00003.json"


def test_a_whole_file(path: Path) -> None:
    path.write_bytes(whole())
    trace = read_trace(path)
    assert trace.rank == 3
    assert list(trace.collectives.seq) == list(range(20))
    assert trace.trailer == Trailer("exit")
    assert trace.nbytes == len(whole())


def test_cut_anywhere_gives_every_complete_event(path: Path) -> None:
    data = whole()
    first_line_end = data.index(b"\n", 3)
    for cut in range(first_line_end, len(data), 7):
        path.write_bytes(data[:cut])
        trace = read_trace(path)
        assert len(trace.collectives) == complete_collectives(data[:cut])
        assert trace.broken_lines <= 1


def test_cut_at_each_line_loses_nothing(path: Path) -> None:
    parts = lines()
    for count in range(1, len(parts) + 1):
        path.write_bytes(b"[\n" + b",\n".join(parts[:count]))
        assert len(read_trace(path).collectives) == max(0, count - 2)


def test_a_broken_line_is_counted_and_passed_over(path: Path) -> None:
    parts = lines()
    parts[5] = b'{"cat":"comm","args":{"id":"not a number"}}'
    path.write_bytes(b"[\n" + b",\n".join(parts) + b"\n]\n")
    trace = read_trace(path)
    assert trace.broken_lines == 1
    assert len(trace.collectives) == 19


def test_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(whole()))
    assert len(read_trace(path).collectives) == 20


def test_a_gzip_file_cut_in_the_middle_gives_what_it_holds(path: Path) -> None:
    data = b"[\n" + b",\n".join(lines(20_000))
    packed = gzip.compress(data)
    path.write_bytes(packed[: len(packed) // 2])
    trace = read_trace(path)
    assert 0 < len(trace.collectives) < 20_000
    assert trace.trailer is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b'{"traceEvents": []}', "not a dsprof trace"),
        (b"\xff\xfe\x00", "not a dsprof trace"),
        (b"[\n" + lines()[0].replace(b'"schema_version":1', b'"schema_version":9'), "version 9"),
        (b"[\n" + lines()[0].replace(b'"rank":3', b'"rank":9'), "rank 9 of 8"),
        (b"[\n" + lines()[0].replace(b'"rank":3', b'"rank":"x"'), "damaged"),
    ],
)
def test_what_is_no_trace_is_named(path: Path, data: bytes, message: str) -> None:
    path.write_bytes(data)
    with pytest.raises(TraceError, match=message) as error:
        read_header(path)
    assert str(path) in str(error.value)
    with pytest.raises(TraceError, match=message):
        read_trace(path)


def test_a_missing_file_is_named(path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(path)
