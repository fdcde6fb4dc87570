"""Files of several kinds that tell of one run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.summarise import summarise
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.readers import READERS
from dsprof.trace.readers.base import Facts
from dsprof.trace.run import find_run, read_run
from dsprof.trace.schema import Header, Note
from tests.factories import flight, kineto, snapshot
from tests.factories import trace as make
from tests.factories.trace_files import write_run

NOW_NS = flight.EPOCH_NS


def dumps(folder: Path, world_size: int = 2) -> list[Path]:
    groups = {"0": range(world_size)}
    entries = [flight.call(1), flight.call(2)]
    return [flight.write(folder, r, flight.document(entries, groups)) for r in range(world_size)]


def test_a_dump_and_a_snapshot_stand_beside_the_trace_of_their_rank(tmp_path: Path) -> None:
    files = write_run(tmp_path, started_epoch_ns=NOW_NS)
    dumped = dumps(tmp_path)
    snapshot.write(tmp_path / "rank1.pickle", [snapshot.segment(4)])
    run = find_run([tmp_path])
    assert run.files == tuple(files)
    assert run.strangers == ()
    first, second = read_run(run)
    assert (len(first.steps), len(second.steps)) == (4, 4)
    assert first.flight is not None
    assert first.snapshot is None
    assert second.snapshot is not None
    assert second.beside == [str(dumped[1]), str(tmp_path / "rank1.pickle")]
    assert second.header.versions["nccl"] == "2.27.3"


def test_a_profile_stands_beside_the_trace_of_its_rank(tmp_path: Path) -> None:
    files = write_run(tmp_path, started_epoch_ns=int(kineto.START_US) * 1000)
    profile = kineto.write(tmp_path / "profile.json", kineto.steps(3, 20, 5), 1)
    run = find_run([tmp_path])
    assert run.files == tuple(files)
    assert run.beside == {1: [profile]}
    assert run.strangers == ()


def test_of_a_rank_whose_profile_is_unreadable_the_rest_is_read(tmp_path: Path) -> None:
    profile = tmp_path / "profile.rank1.json"
    profile.write_text('{"traceEvents": [{"ph": "X", "ts": 1.0, "dur": 5.0, "name": "fusion"}]}')
    snapshot.write(tmp_path / "rank1.pickle", [snapshot.segment(4)])
    run = find_run([tmp_path])
    [trace] = read_run(run)
    assert trace.snapshot is not None
    [note] = trace.notes
    assert note.text.startswith(f"{profile}: a Chrome trace, but not of torch.profiler")
    assert [*summarise(run, [Run])[Run].ranks] == [1]


def test_a_profile_of_another_day_is_another_run(tmp_path: Path) -> None:
    write_run(tmp_path, started_epoch_ns=int(kineto.START_US) * 1000 - 30 * 3600 * make.SECOND)
    profile = kineto.write(tmp_path / "profile.json", kineto.steps(3, 20, 5), 1)
    run = find_run([tmp_path])
    assert run.files == (profile,)
    assert len(run.strangers) == 2


def test_a_profile_of_another_process_is_another_run(tmp_path: Path) -> None:
    write_run(tmp_path, started_epoch_ns=int(kineto.START_US) * 1000)
    for pid, beside in ((101, 0), (999, 1)):
        folder = tmp_path / str(pid)
        folder.mkdir()
        name = f"node-a_{pid}.1700000000000.pt.trace.json"
        events = [kineto.of_process(pid), *kineto.steps(3, 20, 5)]
        profile = kineto.write(folder / name, events, 1)
        run = find_run([tmp_path, profile])
        reasons = [stranger.reason for stranger in run.strangers]
        assert sum("of another run" in reason for reason in reasons) == beside


def test_a_rank_of_which_only_a_dump_is_there_is_one_of_the_run(tmp_path: Path) -> None:
    files = write_run(tmp_path, world_size=3, started_epoch_ns=NOW_NS)
    dumped = dumps(tmp_path, world_size=3)
    files[1].unlink()
    run = find_run([tmp_path])
    assert run.files == (files[0], dumped[1], files[2])
    assert [trace.header.world_size for trace in read_run(run)] == [3, 3, 3]


def test_dumps_of_another_world_or_of_before_the_run_are_strangers(tmp_path: Path) -> None:
    files = write_run(tmp_path, started_epoch_ns=NOW_NS)
    dumps(tmp_path, world_size=4)
    run = find_run([tmp_path])
    assert run.files == tuple(files)
    assert run.beside == {}
    assert "of 4 of another run" in run.strangers[0].reason
    later = tmp_path / "later"
    later.mkdir()
    files = write_run(later, started_epoch_ns=NOW_NS + 3600 * make.SECOND)
    dumps(later)
    assert find_run([later]).beside == {}


def test_dumps_alone_are_a_run_whose_snapshots_say_no_rank(tmp_path: Path) -> None:
    dumped = dumps(tmp_path, world_size=4)
    snapshot.write(tmp_path / "memory.pickle", [snapshot.segment(4)])
    run = find_run([tmp_path])
    assert run.files == tuple(dumped)
    assert run.beside == {0: [tmp_path / "memory.pickle"]}
    assert [head.world_size for head in run.headers] == [4] * 4


def test_the_newest_dumps_are_read(tmp_path: Path) -> None:
    for folder, seq in (("a", 1), ("b", 900)):
        (tmp_path / folder).mkdir()
        for rank in range(2):
            flight.write(tmp_path / folder, rank, flight.document([flight.call(seq)]))
    run = find_run([tmp_path / "a", tmp_path / "b"])
    assert {path.parent.name for path in run.files} == {"b"}
    assert len(run.strangers) == 2


class Log:
    """Reads a file of two ranks."""

    name = "log"
    tells = Facts.LOG
    order = 1000

    def __init__(self) -> None:
        self.reads = 0

    def recognises(self, start: bytes) -> bool:
        return start.startswith(b"a log")

    def read_headers(self, path: Path) -> list[Header]:
        return [make.header(rank, 0, started_epoch_ns=0) for rank in range(2)]

    def read_traces(self, path: Path) -> Iterator[RankTrace]:
        self.reads += 1
        for header in self.read_headers(path):
            note = Note(f"of {header.rank}")
            trace = make.rank_trace(header.rank, head=header, notes=[note])
            trace.path = str(path)
            yield trace


def test_a_file_of_several_ranks_is_read_once_and_logs_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    monkeypatch.setattr("dsprof.trace.readers.READERS", (*READERS, log))
    write_run(tmp_path)
    for name in ("out.log", "err.log"):
        (tmp_path / name).write_bytes(b"a log, " + name.encode())
    shutil.copy(tmp_path / "out.log", tmp_path / "out2.log")
    run = find_run([tmp_path])
    assert [stranger.reason for stranger in run.strangers] == [f"a copy of {tmp_path}/out.log"]
    traces = list(read_run(run))
    assert [[note.text for note in trace.notes] for trace in traces] == [["of 0"] * 2, ["of 1"] * 2]
    assert log.reads == 2
    assert summarise(run, [Run])[Run].ranks[1].beside == (
        str(tmp_path / "err.log"),
        str(tmp_path / "out.log"),
    )
