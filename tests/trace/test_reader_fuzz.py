"""The reader against damage of every kind: a RankTrace or one TraceError, and nothing else."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dsprof.errors import TraceError
from dsprof.trace.reader import read_trace
from dsprof.trace.run import is_diagnosis
from dsprof.trace.table import RankTrace
from tests.factories import trace as make
from tests.factories.trace_files import encode, run_events

EVENTS = run_events(make.header())
WHOLE = encode(EVENTS)
HEADER_END = WHOLE.index(b",\n{", 2)

fuzz = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.rank00000.json"


def read(path: Path, data: bytes) -> RankTrace | None:
    path.write_bytes(data)
    is_diagnosis(path)
    try:
        return read_trace(path)
    except TraceError as refusal:
        message = str(refusal)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return None


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


@fuzz
@given(position=st.integers(0, len(WHOLE) - 1), bit=st.integers(0, 7))
def test_one_flipped_bit(path: Path, position: int, bit: int) -> None:
    data = bytearray(WHOLE)
    data[position] ^= 1 << bit
    read(path, bytes(data))


@fuzz
@given(start=st.integers(0, len(WHOLE)), noise=st.binary(min_size=1, max_size=64))
def test_noise_in_the_middle(path: Path, start: int, noise: bytes) -> None:
    read(path, WHOLE[:start] + noise + WHOLE[start:])


@fuzz
@given(data=st.binary(max_size=256))
@example(b"[" * 100_000)
@example(b'{"cat":"header","args":' * 50_000)
@example("[\n{}".encode("utf-16"))
@example(b"\x1f\x8b")
@example(b"\xff\xfe\x00")
def test_anything_at_all(path: Path, data: bytes) -> None:
    read(path, data)
    read(path, WHOLE[: HEADER_END + 2] + data)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@fuzz
@given(data=st.data())
def test_a_field_with_any_value(path: Path, data: st.DataObject) -> None:
    lines = [json.loads(line.strip(b",")) for line in WHOLE.split(b"\n")[1:-2]]
    line = data.draw(st.sampled_from(lines))
    fields = data.draw(st.sampled_from([line, line["args"]]))
    fields[data.draw(st.sampled_from(sorted(fields)))] = data.draw(json_values)
    read(path, ("[\n" + ",\n".join(map(json.dumps, lines)) + "\n]\n").encode())


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


@fuzz
@given(position=st.integers(0, len(gzip.compress(WHOLE, mtime=0)) - 1), byte=st.integers(0, 255))
def test_a_damaged_gzip_file(path: Path, position: int, byte: int) -> None:
    packed = bytearray(gzip.compress(WHOLE, mtime=0))
    packed[position] = byte
    read(path, bytes(packed))
