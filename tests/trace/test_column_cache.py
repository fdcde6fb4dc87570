from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest

from benchmarks.scale_runs import Size, sums, write_sums
from dsprof.environment import EnvSnapshot
from dsprof.trace import column_cache, run
from dsprof.trace.lines import LINES
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.rolling.parts import TAILS, part_of
from dsprof.trace.run import find_run, read_run
from dsprof.trace.schema import Note, Site
from dsprof.trace.selection import Selection
from tests.factories.trace import header, heartbeat, span
from tests.factories.trace_files import encode, read, run_events


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache."""
    monkeypatch.setattr(column_cache, "SMALLEST_BYTES", 0)
    monkeypatch.setenv("DSPROF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A trace with a record of several kinds."""
    events = run_events(header(0, 1), steps=30)
    more = [
        LINES["site"](Site(1, "train.py", 7)),
        LINES["user"](span("load", 3, 9, 2), name="load", tid=4),
        LINES["heartbeat"](heartbeat(5)),
        LINES["note"](Note("a note")),
        LINES["environment"](EnvSnapshot(variables={"NCCL_ALGO": "Ring"})),
    ]
    file = tmp_path / "trace.rank00000.json"
    file.write_bytes(encode([*events[:-1], *more, events[-1]]))
    return file


def content(trace: RankTrace) -> list[object]:
    rows = trace.collectives
    columns = [np.asarray(getattr(rows, one.name)).tolist() for one in fields(rows)]
    dtypes = [getattr(rows, one.name).dtype for one in fields(rows) if one.name != "words"]
    parts = [getattr(trace, one.name) for one in fields(trace) if one.name != "collectives"]
    return [columns, dtypes, parts]


def unreadable(*_: object) -> RankTrace:
    raise AssertionError("the trace was decoded again")


def test_the_second_reading_gives_the_same_without_decoding(path, monkeypatch):
    first = read(path)
    monkeypatch.setattr(run, "read_trace", unreadable)
    assert content(read(path)) == content(first)


def test_a_file_that_changed_is_read_again(path):
    read(path)
    path.write_bytes(encode(run_events(header(0, 1), steps=9)))
    assert len(read(path).steps) == 9


def test_a_file_that_changed_within_its_size_and_time_is_read_again(path, monkeypatch):
    monkeypatch.setattr(column_cache, "_ENDS_BYTES", 1 << 8)
    before, status = path.read_bytes(), path.stat()
    assert read(path).collectives.nbytes.max() == 1 << 20
    path.write_bytes(before.replace(b'"nbytes":1048576', b'"nbytes":2048576'))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == len(before)
    assert read(path).collectives.nbytes.max() == 2048576


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(path, monkeypatch):
    decode = run.read_trace

    def read_and_replace(*arguments):
        trace = decode(*arguments)
        path.with_suffix(".new").write_bytes(encode(run_events(header(0, 1), steps=9)))
        path.with_suffix(".new").replace(path)
        return trace

    monkeypatch.setattr(run, "read_trace", read_and_replace)
    assert len(read(path).steps) == 30
    monkeypatch.setattr(run, "read_trace", decode)
    assert len(read(path).steps) == 9


@pytest.mark.parametrize("begun", [b"", None], ids=["no part", "half a part"])
def test_a_rolling_recording_whose_parts_come_later_is_read_again(tmp_path, begun):
    """It is being copied: the book is there first."""
    size = Size(1, 40, 2)
    parts = sums(size, is_slow=False)
    tail = parts[TAILS[0]]
    half = tail[: tail.rfind(b"\n", 0, len(tail) // 2) + 1]
    write_sums(tmp_path, size, 0, {TAILS[0]: half} if begun is None else {})
    book = tmp_path / "trace.rank00000.json"
    first = read(book)
    for ending, data in parts.items():
        part_of(book, ending).write_bytes(data)
    assert len(read(book).rollups) > len(first.rollups)


def test_some_steps_are_read_alike_whether_all_were_read_before(path, cache):
    """A damaged line of another step is not in what is read of a few."""
    path.write_bytes(path.read_bytes().replace(b'"step":2,', b'#"step":2,', 1))
    some = Selection(steps=range(20, 25))
    [before] = read_run(find_run([path], some))
    assert read(path).broken_lines
    assert list(cache.iterdir())
    [after] = read_run(find_run([path], some))
    assert before.broken_lines == after.broken_lines


def test_a_run_that_has_not_ended_is_not_kept(path, cache):
    path.write_bytes(encode(run_events(header(0, 1), steps=9)[:-1]))
    read(path)
    assert not list(cache.glob("*"))


def test_damage_and_malice_are_harmless(path, cache):
    """Whatever is in the cache, a trace comes of it, or the file is read."""
    first = content(read(path))
    [kept] = cache.iterdir()
    whole = kept.read_bytes()
    random = Random(7)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(random.randint(1, 4)):
            data[random.randrange(len(data))] = random.randrange(256)
        kept.write_bytes(data[: random.choice([len(data), random.randrange(len(data))])])
        trace = read(path)
        codes = trace.collectives.op
        assert isinstance(trace.header.rank, int)
        assert not len(codes) or codes.max() < len(trace.collectives.words)
    kept.write_bytes(whole)
    assert content(read(path)) == first


def test_a_huge_size_takes_no_memory(path, cache):
    first = content(read(path))
    [kept] = cache.iterdir()
    kept.write_bytes(b"\xff" * 8 + kept.read_bytes()[8:])
    assert content(read(path)) == first


def test_many_rows_of_a_constant_take_no_memory(path, cache):
    first = content(read(path))
    [kept] = cache.iterdir()
    data = kept.read_bytes()
    size = int.from_bytes(data[:8], "little")
    head = msgspec.msgpack.decode(data[12 : 12 + size], type=column_cache._Head)
    head.rows = 1 << 40
    head.columns[0].is_constant = True
    kept.write_bytes(column_cache._packed(msgspec.msgpack.encode(head)) + data[12 + size :])
    assert content(read(path)) == first


def test_a_code_of_no_word_is_not_taken(path, cache):
    first = content(read(path))
    [kept] = cache.iterdir()
    data = bytearray(kept.read_bytes())
    records = 12 + int.from_bytes(data[:8], "little")
    columns = records + 12 + int.from_bytes(data[records : records + 8], "little")
    data[columns] = 99  # of the operation, the first column
    kept.write_bytes(data)
    assert content(read(path)) == first


def test_records_nested_without_end_are_not_taken(path, cache):
    first = content(read(path))
    [kept] = cache.iterdir()
    data = kept.read_bytes()
    records = 12 + int.from_bytes(data[:8], "little")
    kept.write_bytes(data[:records] + column_cache._packed(b"\x91" * 100_000))
    assert content(read(path)) == first


def test_what_a_killed_writer_left_is_dropped_some_day(path, cache, monkeypatch):
    def killed(*_):
        raise SystemExit

    monkeypatch.setattr("dsprof.trace.column_cache.os.replace", killed)
    monkeypatch.setattr("dsprof.trace.column_cache.os.unlink", lambda _: None)
    with pytest.raises(SystemExit):
        read(path)
    monkeypatch.undo()
    monkeypatch.setenv("DSPROF_CACHE", str(cache))
    monkeypatch.setattr(column_cache, "SMALLEST_BYTES", 0)
    monkeypatch.setattr(column_cache, "LARGEST_CACHE_BYTES", path.stat().st_size + 100)
    [left] = cache.iterdir()
    os.utime(left, (0, 0))
    read(path)
    assert left not in cache.iterdir()


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_others_can_write_is_not_trusted(path, cache, monkeypatch, what):
    read(path)
    [kept] = cache.iterdir()
    (cache if what == "folder" else kept).chmod(0o777)
    assert column_cache.load(path, column_cache.place_of(path)) is None


def test_another_trace_under_the_same_name_is_not_taken(path, cache, tmp_path):
    read(path)
    [kept] = cache.iterdir()
    other = tmp_path / "trace.rank00001.json"
    other.write_bytes(encode(run_events(header(1, 2), steps=3)))
    read(other)
    [second] = [one for one in cache.iterdir() if one != kept]
    second.write_bytes(kept.read_bytes())
    assert read(other).rank == 1


def test_off_means_no_folder(path, cache, monkeypatch):
    monkeypatch.setenv("DSPROF_CACHE", "off")
    read(path)
    assert not cache.exists()


def test_a_folder_of_caches_that_is_relative_is_ignored(monkeypatch, tmp_path):
    monkeypatch.delenv("DSPROF_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    for named, expected in ((str(tmp_path / "x"), tmp_path / "x"), ("x", tmp_path / ".cache")):
        monkeypatch.setenv("XDG_CACHE_HOME", named)
        assert column_cache.folder() == expected / "dsprof"


def test_a_cache_that_cannot_be_written_does_no_harm(path, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DSPROF_CACHE", str(tmp_path / "file" / "cache"))
    assert len(read(path).steps) == 30


def test_what_was_used_longest_ago_makes_room(path, cache, monkeypatch):
    read(path)
    [old] = cache.iterdir()
    monkeypatch.setattr(column_cache, "LARGEST_CACHE_BYTES", path.stat().st_size + 100)
    other = path.with_name("trace.rank00001.json")
    other.write_bytes(path.read_bytes())
    read(other)
    assert [*cache.iterdir()] == [old]  # it was used just now
    os.utime(old, (0, 0))
    read(other)
    [new] = cache.iterdir()
    assert new != old
