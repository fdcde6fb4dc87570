"""The profiler's reader, and that of zip files, against files made to exhaust them."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import pytest

from dsprof.analysis.summarise import summarise
from dsprof.errors import TraceError
from dsprof.trace.run import RankFiles, find_run, read_rank
from dsprof.trace.schema import Header
from tests.factories import kineto as make
from tests.fuzzing.formats import FORMATS, read, zipped
from tests.speed import at_most

PROFILE = FORMATS["kineto"]()
ZIPPED = FORMATS["zip"]().whole
WHOLE = PROFILE.whole


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "profile"


def test_the_whole_file_is_read_whole(path: Path) -> None:
    for data in (WHOLE, gzip.compress(WHOLE)):
        (trace,) = read(PROFILE, path, data) or []
        assert trace.device is not None
        assert (len(trace.device), len(trace.steps), trace.broken_lines) == (9, 4, 0)


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


ZIPPED = zipped({"rank0.json": WHOLE})


@pytest.mark.alone
@pytest.mark.parametrize("nothing", [b"", b"x", ZIPPED, gzip.compress(ZIPPED)])
def test_a_zip_of_many_files_reads_its_directory_once(path: Path, nothing: bytes) -> None:
    files = {f"{i}.json": nothing for i in range(1_500)}
    path.write_bytes(zipped(files | {"rank0.json": WHOLE}))
    with at_most(30):
        assert read_rank(RankFiles(*one(path))).rank == 0


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
    with pytest.raises(TraceError, match="a zip of 40,000 files is not a run"):
        find_run([path])


def test_bombs_that_are_small_each(path: Path) -> None:
    event = b'{"ph":"X","ts":1,"dur":1,"cat":"kernel","name":"k"},'
    trace = b'{"schemaVersion": 1, "traceEvents": [' + event * 400_000
    path.write_bytes(zipped(dict.fromkeys([f"rank{i}.json" for i in range(4)], trace)))
    with pytest.raises(TraceError, match="expands to more than 300 times its size on disk"):
        find_run([path])


def test_a_start_beyond_64_bits_is_refused(path: Path) -> None:
    make.write(path, [make.step(1, 2.0**70, 1.0)])
    with pytest.raises(TraceError, match="a time is beyond 64 bits: the file is damaged"):
        find_run([path])


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_times_near_the_largest_number_are_damage(path: Path) -> None:
    far = make.span("kernel", "k", 0.0, 0.0, ts=1e308, dur=1e308)
    (trace,) = read(PROFILE, path, make.document([*make.steps(4, 60.0, 40.0), far])) or []
    assert len(trace.steps) == 4
    assert trace.broken_lines == 1
