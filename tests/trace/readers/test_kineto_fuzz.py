"""The profiler's reader against damage of every kind: a trace or one TraceError, nothing else."""

from __future__ import annotations

import gzip
import io
import json
import os
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dsprof.analysis.summarise import summarise
from dsprof.errors import TraceError
from dsprof.trace.run import find_run, is_diagnosis, read_rank
from dsprof.trace.schema import Header
from dsprof.trace.table import RankTrace
from tests.factories import kineto as make

WHOLE = make.document(
    [
        *make.steps(4, 30, 20, 5),
        make.copy(400, 1),
        make.issued(1, 10),
        make.gloo("all_gather", 20, [[8]]),
    ]
)
PACKED = gzip.compress(WHOLE, mtime=0)

fuzz = settings(
    max_examples=int(os.environ.get("DSPROF_FUZZ", "40")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "profile"


def read(path: Path, data: bytes) -> RankTrace | None:
    path.write_bytes(data)
    is_diagnosis(path)
    try:
        run = find_run([path])
        summarise(run)
        return read_rank(run.files[0], run.headers[0])
    except TraceError as refusal:
        message = str(refusal)
    assert message.startswith(str(path))
    assert "\n" not in message
    return None


def test_the_whole_file_is_read_whole(path: Path) -> None:
    for data in (WHOLE, PACKED):
        trace = read(path, data)
        assert trace is not None
        assert trace.device is not None
        assert (len(trace.device), len(trace.steps), trace.broken_lines) == (9, 4, 0)


@fuzz
@given(cut=st.integers(0, len(WHOLE)))
def test_a_cut_file(path: Path, cut: int) -> None:
    read(path, WHOLE[:cut])


@fuzz
@given(cut=st.integers(0, len(PACKED)), position=st.integers(0, len(PACKED)), byte=st.binary())
def test_a_damaged_gzip_file(path: Path, cut: int, position: int, byte: bytes) -> None:
    read(path, PACKED[:cut])
    read(path, PACKED[:position] + byte + PACKED[position + len(byte) :])


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
@given(
    start=st.integers(0, len(WHOLE)),
    word=st.sampled_from(
        ["NaN", "-Infinity", "1e999", "9" * 40, "-1e300", '"x"', "null", "{", "[", '"', "}", "]"]
        + ["},{", "[" * 3000, '{"a":' * 3000, "\\u0000", "\ud800"]
    ),
)
def test_words_in_the_middle(path: Path, start: int, word: str) -> None:
    read(path, WHOLE[:start] + word.encode("utf-8", "surrogatepass") + WHOLE[start:])


@fuzz
@given(data=st.binary(max_size=256))
@example(b"[" * 100_000)
@example(b'{"traceEvents":' * 50_000)
@example(b'{"traceEvents": [' + b'{"args":' * 50_000)
@example(WHOLE.decode().encode("utf-16"))
@example(b"\xef\xbb\xbf" + WHOLE)
@example(b"PK\x03\x04" + WHOLE)
def test_anything_at_all(path: Path, data: bytes) -> None:
    read(path, data)
    read(path, b'{"schemaVersion": 1, "traceEvents": [' + data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@fuzz
@given(data=st.data())
def test_a_field_with_any_value_and_twice(path: Path, data: st.DataObject) -> None:
    document = json.loads(WHOLE)
    event = data.draw(st.sampled_from(document["traceEvents"]))
    places = [document, document["distributedInfo"], event, event["args"] or event]
    fields = data.draw(st.sampled_from(places))
    key, value = data.draw(st.sampled_from(sorted(fields))), data.draw(json_values)
    if data.draw(st.booleans()):
        fields[key] = value
        read(path, json.dumps(document).encode())
    else:  # the key stands twice
        text = json.dumps(document).replace(
            f'"{key}":', f'"{key}": {json.dumps(value)}, "{key}":', 1
        )
        read(path, text.encode())


def test_a_bomb_is_refused_in_bounded_memory(path: Path) -> None:
    start = b'{"schemaVersion": 1, "traceEvents": ['
    event = b'{"ph":"X","ts":1,"dur":1,"cat":"kernel","name":"k"},' * 20_000
    path.write_bytes(gzip.compress(start + event * 100, 9))
    with pytest.raises(TraceError, match="expands to more than 300 times its size on disk"):
        summarise(find_run([path]))


@pytest.mark.parametrize("name", ["../out.json", "/etc/passwd", "a/../../b", "a\\..\\b"])
def test_names_in_a_zip_lead_nowhere(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "run.zip", "w") as archive:
        archive.writestr(name, WHOLE)
    with pytest.raises(TraceError, match="leads out of it"):
        find_run([tmp_path / "run.zip"])


def zipped(files: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


ZIPPED = zipped({"rank0.json": WHOLE})


@fuzz
@given(position=st.integers(0, len(ZIPPED) - 1), byte=st.integers(0, 255))
@example(ZIPPED.rindex(b"rank0.json"), 0)  # a file without a name
def test_a_damaged_zip(path: Path, position: int, byte: int) -> None:
    data = bytearray(ZIPPED)
    data[position] = byte
    read(path, bytes(data))


@pytest.mark.timed
@pytest.mark.parametrize("nothing", [b"", b"x", ZIPPED, gzip.compress(ZIPPED)])
def test_a_zip_of_many_files_reads_its_directory_once(path: Path, nothing: bytes) -> None:
    files = {f"{i}.json": nothing for i in range(1_500)}
    path.write_bytes(zipped(files | {"rank0.json": WHOLE}))
    begun = time.process_time()
    assert read_rank(*one(path)).rank == 0
    assert time.process_time() - begun < 3


def one(path: Path) -> tuple[Path, Header]:
    run = find_run([path])
    return run.files[0], run.headers[0]


def test_a_zip_that_was_written_anew_is_read_anew(path: Path) -> None:
    path.write_bytes(zipped({"a.json": WHOLE}))
    assert one(path)[0].name == "a.json"
    path.write_bytes(zipped({"another.json": WHOLE}))
    assert one(path)[0].name == "another.json"


def test_a_zip_of_more_files_than_a_run_has(path: Path) -> None:
    path.write_bytes(zipped({str(i): b"" for i in range(40_000)}))
    with pytest.raises(TraceError, match="a zip of 40,000 files is no run"):
        find_run([path])


def test_bombs_that_are_small_each(path: Path) -> None:
    event = b'{"ph":"X","ts":1,"dur":1,"cat":"kernel","name":"k"},'
    trace = b'{"schemaVersion": 1, "traceEvents": [' + event * 400_000
    path.write_bytes(zipped(dict.fromkeys([f"rank{i}.json" for i in range(4)], trace)))
    with pytest.raises(TraceError, match="expands to more than 300 times its size on disk"):
        find_run([path])
