"""The native reader takes whatever a killed process left behind."""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path

import msgspec
import pytest

from dsprof.errors import TraceError
from dsprof.trace import chunks, rank_trace
from dsprof.trace.lines import COMM_LINE, LINES, OPEN_LINE, Line
from dsprof.trace.rank_trace import CollectivesBuilder
from dsprof.trace.reader import read_header, read_trace
from dsprof.trace.schema import Collective, EngineConfig, Group, Header, Trailer


def lines(collectives: int = 20) -> list[bytes]:
    header = LINES["header"](args=Header(1, "run", 3, 8, "host", 1, 5, 7))
    group = LINES["group"](args=Group(1, "key", "world"))
    comm = [
        COMM_LINE(args=Collective(n, 1, n, 64, 16, n * 1000), name="all_reduce")
        for n in range(collectives)
    ]
    return [msgspec.json.encode(event) for event in (header, group, *comm)]


def whole() -> bytes:
    trailer = msgspec.json.encode(LINES["trailer"](args=Trailer("exit")))
    return b"[\n" + b",\n".join([*lines(), trailer]) + b"\n]\n"


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


@pytest.mark.parametrize("chunk", [1, 2, 7, 64, 100, 101, 1 << 19])
def test_how_much_is_read_at_once_makes_no_difference(
    path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(chunks, "_CHUNK_BYTES", chunk)
    path.write_bytes(b"\n" * 50 + whole().replace(b"\n", b"\r\n") + b"\n,\n" * 50)
    trace = read_trace(path)
    assert list(trace.collectives.seq) == list(range(20))
    assert trace.trailer == Trailer("exit")
    assert trace.broken_lines == 0


@pytest.mark.parametrize(
    ("end", "broken"), [(b"{", 1), (b"7", 1), (b"{}", 1), (b"]", 0), (b" ", 0)]
)
def test_the_beginning_of_a_last_line_is_broken(
    path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes, broken: int
) -> None:
    monkeypatch.setattr(chunks, "_CHUNK_BYTES", 64)  # so that it is decoded by itself
    path.write_bytes(b"[\n" + b",\n".join(lines()) + b",\n" + end)
    trace = read_trace(path)
    assert len(trace.collectives) == 20
    assert trace.broken_lines == broken


def test_events_on_one_line_among_blanks_are_read(path: Path) -> None:
    """As another tool may have put them."""
    header, _, first, second, *_ = lines()
    comm = first + b"," + second
    path.write_bytes(b"\n" * 100 + b"[\n" + header + b",\n" + comm + b"]" + b" " * 100)
    trace = read_trace(path)
    assert len(trace.collectives) == 2
    assert trace.broken_lines == 0


def test_a_second_header_is_passed_over(path: Path) -> None:
    """Of a file that was put behind another; a number in it may be beyond all use."""
    large = LINES["header"](args=Header(1, "run", 3, 8, "host", 1, 2**62, 7))
    path.write_bytes(whole() + b"[\n" + msgspec.json.encode(large) + b"\n]\n")
    trace = read_trace(path)
    assert trace.header.started_epoch_ns == 5
    assert len(trace.collectives) == 20
    assert trace.broken_lines == 0


def test_cut_at_each_line_loses_nothing(path: Path) -> None:
    parts = lines()
    for count in range(1, len(parts) + 1):
        path.write_bytes(b"[\n" + b",\n".join(parts[:count]))
        assert len(read_trace(path).collectives) == max(0, count - 2)


def test_records_of_kinds_that_a_newer_dsprof_has_are_counted_apart(path: Path) -> None:
    parts = lines()
    parts[5:5] = [b'{"cat":"weather","ph":"i","args":{"sun":true}}', b'{"cat":7}', b'{"cat":"weath']
    path.write_bytes(b"[\n" + b",\n".join(parts) + b"\n]\n")
    trace = read_trace(path)
    assert (trace.unknown_records, trace.broken_lines, len(trace.collectives)) == (1, 2, 20)


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
        (b"[\n" + lines()[0].replace(b'"rank":3', b'"rank":9'), "invalid rank 9 for world size 8"),
        (b"[\n" + lines()[0].replace(b'"rank":3', b'"rank":"x"'), "damaged"),
        (b"[\n" + lines()[0].replace(b'"pid":1', b'"pid":' + b"9" * 30), "beyond 64 bits"),
        (
            b"[\n" + lines()[0].replace(b'_size":8', b'_size":9007199254740992'),
            "invalid rank 3 for world size",
        ),
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


RARE = {
    "step": {"step": 1, "start_ns": 1, "end_ns": 2, "micro_steps": 1},
    "flush": {"id": 1, "stage": 1, "elements": 1, "start_ns": 1, "end_ns": 2, "step": 1},
    "fetch": {"id": 1, "kind": "fetch", "elements": 1, "start_ns": 1, "end_ns": 2, "step": 1},
    "phase": {"start_ns": 1, "end_ns": 2, "step": 1, "micro_step": 1},
    "memory": {"at": "step", "time_ns": 1, "rss_bytes": 1},
    "memory of devices": {"at": "step", "time_ns": 1, "device": {"allocated": 1}},
    "group": {"id": 1, "key": "k", "label": "l", "size": 1},
    "group of ranks": {"id": 1, "key": "k", "label": "l", "ranks": [1]},
    "counters": {"step": 1, "rows": [{"op": "a", "group": 1, "calls": 1, "nbytes": 1}]},
    "engine": {"engine": 1, "effective": {"zero_optimization": {"stage": [1]}}},
    "environment": {"limits": {"nofile": 1}},
    "trailer": {"reason": "exit", "hooks_ns": 1},
    "open": {"id": 1, "group": 1, "seq": 1, "nbytes": 1, "elements": 1, "issue_ns": 1},
}


@pytest.mark.parametrize("number", [2**62, -(2**62) - 1, 2**63, 10**30])
@pytest.mark.parametrize("kind", RARE)
def test_a_line_with_a_number_beyond_64_bits_is_broken(path: Path, kind: str, number: int) -> None:
    if kind in ("engine", "environment"):
        number *= 2  # settings are not subtracted from each other
    event = {"cat": kind.partition(" ")[0], "name": "forward", "args": RARE[kind]}
    line = json.dumps(event)
    last = line.rindex(": 1") + 2
    for text, broken in ((line, 0), (line[:last] + str(number) + line[last + 1 :], 1)):
        path.write_bytes(b"[\n" + b",\n".join([*lines(), text.encode()]) + b"\n]\n")
        trace = read_trace(path)
        assert trace.broken_lines == broken
        assert trace.collectives.seq[:20].tolist() == list(range(20))


def test_what_has_no_limit_is_the_largest_number(path: Path) -> None:
    """DeepSpeed's default of stage3_model_persistence_threshold, and of hosts."""
    engine = EngineConfig(1, effective={"threshold": sys.maxsize})
    line = msgspec.json.encode(LINES["engine"](args=engine))
    path.write_bytes(b"[\n" + b",\n".join([*lines(), line]) + b"\n]\n")
    trace = read_trace(path)
    assert trace.engines == {1: engine}
    assert trace.broken_lines == 0


def test_the_smallest_number_stays_what_it_is(path: Path) -> None:
    args = Collective(1, 1, 1, 64, 16, -(2**63))
    parts = [*lines(0), msgspec.json.encode(COMM_LINE(args=args, name="all_reduce"))]
    path.write_bytes(b"[\n" + b",\n".join(parts) + b"\n]\n")
    assert read_trace(path).collectives.issue_ns.tolist() == [-(2**63)]


@pytest.mark.parametrize("end", [b"\n]\n", b""])
def test_a_line_that_is_too_long_is_broken_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    monkeypatch.setattr(chunks, "_CHUNK_BYTES", 64)
    monkeypatch.setattr(chunks, "_LONGEST_LINE_BYTES", 1000)
    long = b'{"cat":"note","args":{"text":"' + b"x" * 10_000 + b'"}}'
    path.write_bytes(b"[\n" + b",\n".join([*lines(), long, *lines()[2:], long]) + end)
    trace = read_trace(path)
    assert len(trace.collectives) == 40
    assert trace.broken_lines == 2
    assert trace.notes == []


def test_a_line_without_end_is_not_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gzip bomb: 32 MiB of one line in 32 kB."""
    decoded: list[int] = []
    monkeypatch.setattr(chunks, "_LONGEST_LINE_BYTES", 1 << 20)
    decode = chunks._decode

    def noted(data: bytearray) -> tuple[list[Line], int]:
        decoded.append(len(data))
        return decode(data)

    monkeypatch.setattr(chunks, "_decode", noted)
    path.write_bytes(gzip.compress(b"[\n" + b",\n".join(lines()) + b",\n" + b"x" * (32 << 20)))
    trace = read_trace(path)
    assert len(trace.collectives) == 20
    assert trace.broken_lines == 1
    assert max(decoded) < 2 << 20


def test_an_open_line_with_an_end_is_of_a_finished_collective(path: Path) -> None:
    rows = [Collective(n, 1, n, 64, 16, 5, done_ns=n * 10) for n in range(2)]
    events = [msgspec.json.encode(OPEN_LINE(args=row, name="send")) for row in rows]
    path.write_bytes(b"[\n" + b",\n".join([*lines(0), *events]))
    assert read_trace(path).collectives.is_open.tolist() == [True, False]


def test_a_pipe_is_refused_and_not_waited_for(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(TraceError, match="not a regular file"):
        read_trace(path)


def test_rows_keep_their_order_however_many_parts_they_come_in() -> None:
    """Small numbers are kept in 32 bits, part by part; here every third has more."""
    builder, times_ns = CollectivesBuilder(), [n << (40 if n % 3 == 0 else 0) for n in range(150)]
    for n, issue_ns in enumerate(times_ns):
        args = Collective(n, 1, n, 64, 16, issue_ns)
        builder.add([COMM_LINE(args=args, name=f"op {n % 2}")])
    rows = builder.build()
    assert rows.issue_ns.tolist() == times_ns
    assert rows.id.tolist() == list(range(150))
    assert [rows.words[code] for code in rows.op] == ["op 0", "op 1"] * 75


def test_a_long_column_of_equal_values_holds_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_trace, "_LEAST_HELD_ONCE", 4)
    builder = CollectivesBuilder()
    for n, site in enumerate((5, 5, 6, 5)):
        builder.add([COMM_LINE(args=Collective(n, 1, n, 64, 16, n, site=site), name="op")])
    rows = builder.build()
    assert rows.group.tolist() == [1] * 4
    assert rows.group.strides == (0,)
    assert rows.site.tolist() == [5, 5, 6, 5]
