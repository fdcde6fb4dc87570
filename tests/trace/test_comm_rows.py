"""C takes the lines that our writer writes, and makes the same of all lines as msgspec does."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dsprof.trace import comm_rows
from dsprof.trace.lines import LINES, OPEN_LINE
from dsprof.trace.schema import Collective, Header, Trailer
from dsprof.trace.writing.encode import Encoder
from tests.factories.both_parsers import read_by_both

pytestmark = pytest.mark.skipif(comm_rows.parse is None, reason="no compiler built the parser")

HEADER = msgspec.json.encode(LINES["header"](args=Header(1, "run", 3, 8, "host", 1, 5, 7)))
TRAILER = msgspec.json.encode(LINES["trailer"](args=Trailer("exit")))
PLAIN = Collective(id=7, group=1, seq=2, nbytes=64, elements=16, issue_ns=5000, op="op")


def full() -> Collective:
    """A collective without any field that has its default."""
    record = Collective(**{name: 3000 + at for at, name in enumerate(PLAIN.__struct_fields__[:6])})
    for at, one in enumerate(msgspec.structs.fields(Collective)[6:]):
        values = {str: f"word {at}", int: 4000 + at, bool: not one.default, tuple: ()}
        setattr(record, one.name, values[type(one.default)])
    return record


def line(record: Collective, rank: int = 3) -> bytes:
    """The line that the writer writes of a collective."""
    return msgspec.json.encode(Encoder(rank, 1000, str).collective(record))


def write(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"[\n" + b",\n".join([HEADER, *lines, TRAILER]) + b"\n]\n")
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.rank00003.json"


@pytest.mark.parametrize("record", [PLAIN, full()])
@pytest.mark.parametrize("rank", [0, 3])
def test_what_the_writer_writes_is_taken(path: Path, record: Collective, rank: int) -> None:
    found = comm_rows.split(bytearray(b" " + line(record, rank) + b",\n" + TRAILER + b"\n] "))
    assert found is not None
    assert len(found[0]) == found[2] == 1
    [row] = read_by_both(write(path, line(record, rank))).collectives.id.tolist()
    assert row == record.id


def test_a_collective_that_ends_is_no_longer_open(path: Path) -> None:
    begun = [msgspec.json.encode(OPEN_LINE(args=PLAIN, name="send"))]
    trace = read_by_both(write(path, *begun, line(PLAIN)))
    assert trace.collectives.is_open.tolist() == [False]


NUMBERS = b"""-7 -0 07 7.0 7e1 null "7" true - 7, 9223372036854775808 -9223372036854775809
    999999999999999999 9999999999999999999 -999999999999999999 1e400 NaN [7] {}""".split()
TEXTS = (*(b'"op\\n"', b'"\\u006fp"', '"öp"'.encode(), b'"o\x01p"', b'"o\xffp"', b'"', b"7"),
         *(b'"o\x00p"', b'"' + b"p" * 70_000 + b'"', b'"","name":"op"'))  # fmt: skip
BESIDE = b"""{"ts":1e3, {"dur":-1.5, {"dur":"1", {"dur":.5, {"dur":1., {"dur":-0.5,
    {"new":{"a":[1]}, {"args":{}, {"cat":"open", {"pid":1.0, {"ph":"X","ph":"i", {{ [{ {,""".split()
INSIDE = b"""{ {"new":[{}], {"group":2, {"GROUP":1, {"is_async":true, {"is_async":1,
    {"is_async":tru, {"is_async":false, {"is_async":null, {"grou\\u0070":1,
    {"dtype":"float32","dtype":"int8", {"group", {"group":, {}
    {"outputs":[1], {"thread":2,"step":1,"op":"sum",""".split()
ODD = {
    b'"id":7': [b'"id":' + value for value in (*NUMBERS, b"", b" 7", b"9" * 400)],
    b'"op"': TEXTS,
    b'{"cat":"comm",': [start.replace(b"{", b'{"cat":"comm",', 1) for start in BESIDE]
    + [b'{"cat":"comm", ', b' {"cat":"comm",', b'{"ph":"X","cat":"comm",', b'{"cat":"common",'],
    b'"args":{': [b'"args":' + start for start in (*INSIDE, b" {", b'{"group" :1,')],
    b'"group":1,': [b"", b'"group":1', b","],
    b"}": [b"", b"]", b"},", b"}}", b"} ", b"}\r", b"}\x00"],
}


@pytest.mark.parametrize("old", ODD)
def test_what_the_writer_would_not_write_is_read_as_ever(path: Path, old: bytes) -> None:
    good = line(PLAIN)
    assert old in good
    for new in ODD[old]:
        read_by_both(write(path, good, good.replace(old, new, 1), good))
        read_by_both(write(path, good[::-1].replace(old[::-1], new[::-1], 1)[::-1]))


def test_an_object_over_several_lines_keeps_those_inside(path: Path) -> None:
    around = b'{"cat":"note","beside":[{},\n' + line(PLAIN) + b',\n{}],"args":{"text":"x"}}'
    read_by_both(write(path, around))
    read_by_both(write(path, line(PLAIN) + b"\n" + line(PLAIN), line(PLAIN) + b"," + line(PLAIN)))


def test_more_words_than_any_trace_has(path: Path) -> None:
    many = [line(msgspec.structs.replace(PLAIN, dtype=f"type {n}")) for n in range(200)]
    assert len(read_by_both(write(path, *many)).collectives) == 200
