"""From paths to one run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from zipfile import ZipFile

import pytest

from dsprof.diagnosis.document import to_json
from dsprof.errors import TraceError
from dsprof.trace.readers.base import Facts
from dsprof.trace.readers.logs import LogReader
from dsprof.trace.run import find_run, read_run
from dsprof.trace.trace_files import is_diagnosis
from tests.factories import kineto
from tests.factories import trace as make
from tests.factories.diagnosis import diagnosis
from tests.factories.trace_files import write_run, write_trace

EPOCH_NS = 1_700_000_000 * make.SECOND
MINUTE = 60 * make.SECOND


def test_a_folder_is_one_run_in_the_order_of_ranks(tmp_path: Path) -> None:
    write_run(tmp_path, world_size=3)
    run = find_run([tmp_path])
    assert [path.name for path in run.files] == [f"trace.rank{rank:05d}.json" for rank in range(3)]
    assert [head.rank for head in run.headers] == [0, 1, 2]
    assert run.strangers == ()


def test_files_may_come_in_any_order_and_twice(tmp_path: Path) -> None:
    files = write_run(tmp_path)
    run = find_run([files[1], files[0], tmp_path])
    assert run.files == (files[0], files[1])
    assert run.strangers == ()


def test_other_files_of_the_folder_are_not_looked_at(tmp_path: Path) -> None:
    files = write_run(tmp_path)
    (tmp_path / "notes.json").write_text("{}")
    assert find_run([tmp_path]).files == tuple(files)


def archive(path: Path, **files: bytes) -> Path:
    with ZipFile(path, "w") as packed:
        for name, data in files.items():
            packed.writestr(f"run/{name}", data)
    return path


def test_archives_of_the_folder_that_hold_no_traces_are_not_named(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    first, second = write_run(tmp_path / "run")
    archive(tmp_path / "model.pt", **{"data.pkl": b"\x80\x02.", "data/0": second.read_bytes()})
    archive(tmp_path / "arrays.npz", **{"a.npy": b"\x93NUMPY"})
    packed = archive(tmp_path / "traces.zip", **{first.name: first.read_bytes(), "README": b"x"})
    run = find_run([tmp_path])
    assert run.files == (packed / "run" / first.name,)
    assert run.strangers == ()


def test_a_checkpoint_that_is_given_says_what_it_is(tmp_path: Path) -> None:
    model = archive(tmp_path / "model.pt", **{"data.pkl": b"\x80\x02.", "data/0": bytes(99)})
    with pytest.raises(TraceError, match="such as a checkpoint; give the traces or logs"):
        find_run([model])


def test_a_trace_that_another_program_wrote_again_is_read(tmp_path: Path) -> None:
    [file] = write_run(tmp_path, world_size=1)
    events = json.loads(file.read_bytes())
    text = ",\n".join(json.dumps(event) for event in events)
    file.write_text(f"[\n{text}\n]")
    assert len(next(read_run(find_run([tmp_path]))).steps) == 4


def test_gzipped_files_are_found_and_read(tmp_path: Path) -> None:
    [plain] = write_run(tmp_path, world_size=1)
    packed = plain.with_suffix(".json.gz")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    run = find_run([tmp_path])
    assert run.files == (packed,)
    assert len(next(read_run(run)).steps) == 4


def test_the_newest_of_two_runs_is_taken(tmp_path: Path) -> None:
    old = write_run(tmp_path, run_key="a", started_epoch_ns=EPOCH_NS)
    new = write_run(tmp_path, name="trace2", run_key="b", started_epoch_ns=EPOCH_NS + MINUTE)
    run = find_run([tmp_path])
    assert run.files == tuple(new)
    assert [stranger.path for stranger in run.strangers] == old
    assert "started 2023-11-14 22:13:20 UTC" in run.strangers[0].reason
    assert "give only its files" in run.strangers[0].reason


def test_files_given_by_name_reach_the_older_run(tmp_path: Path) -> None:
    old = write_run(tmp_path, run_key="a", started_epoch_ns=EPOCH_NS)
    write_run(tmp_path, name="trace2", run_key="b", started_epoch_ns=EPOCH_NS + MINUTE)
    assert find_run(old).files == tuple(old)


def test_two_runs_with_one_key_stay_two_runs(tmp_path: Path) -> None:
    write_run(tmp_path, started_epoch_ns=EPOCH_NS)
    new = write_run(tmp_path, name="trace2", started_epoch_ns=EPOCH_NS + MINUTE)
    run = find_run([tmp_path])
    assert run.files == tuple(new)
    assert len(run.strangers) == 2


def test_a_rank_missing_from_the_first_run_takes_none_from_the_second(tmp_path: Path) -> None:
    first = write_trace(
        tmp_path / "trace.rank00000.json", make.header(0, started_epoch_ns=EPOCH_NS)
    )
    later = EPOCH_NS + MINUTE
    second = [
        write_trace(tmp_path / "trace2.rank00000.json", make.header(0, started_epoch_ns=later)),
        write_trace(
            tmp_path / "trace2.rank00001.json",
            make.header(1, started_epoch_ns=later - make.SECOND),
        ),
    ]
    run = find_run([tmp_path])
    assert run.files == tuple(second)
    assert [stranger.path for stranger in run.strangers] == [first]


def test_a_rank_missing_from_the_second_run_takes_none_from_the_first(tmp_path: Path) -> None:
    first = write_run(tmp_path, started_epoch_ns=EPOCH_NS)
    second = make.header(0, started_epoch_ns=EPOCH_NS + MINUTE)
    last = write_trace(
        tmp_path / "trace.rank00001.json", make.header(1, started_epoch_ns=EPOCH_NS + make.SECOND)
    )
    newest = write_trace(tmp_path / "trace2.rank00000.json", second)
    run = find_run([tmp_path])
    assert run.files == (newest,)
    assert [stranger.path for stranger in run.strangers] == [first[0], last]


def test_ranks_of_one_run_may_start_minutes_apart(tmp_path: Path) -> None:
    for rank in range(2):
        write_trace(
            tmp_path / f"trace.rank{rank:05d}.json",
            make.header(rank, started_epoch_ns=EPOCH_NS + rank * 20 * MINUTE),
        )
    assert len(find_run([tmp_path]).files) == 2


def test_a_rank_an_hour_later_is_another_run(tmp_path: Path) -> None:
    for rank in range(2):
        write_trace(
            tmp_path / f"trace.rank{rank:05d}.json",
            make.header(rank, started_epoch_ns=EPOCH_NS + rank * 60 * MINUTE),
        )
    run = find_run([tmp_path])
    assert [head.rank for head in run.headers] == [1]
    assert len(run.strangers) == 1


def test_a_different_world_size_is_another_run(tmp_path: Path) -> None:
    write_run(tmp_path, world_size=2, started_epoch_ns=EPOCH_NS)
    write_run(tmp_path, world_size=4, name="trace2", started_epoch_ns=EPOCH_NS + make.SECOND)
    assert [head.world_size for head in find_run([tmp_path]).headers] == [4] * 4


def test_a_copy_is_a_stranger_and_not_a_run(tmp_path: Path) -> None:
    files = write_run(tmp_path)
    copy = tmp_path / "trace-copy.rank00000.json"
    copy.write_bytes(files[0].read_bytes())
    run = find_run([tmp_path])
    assert len(run.files) == 2
    assert [stranger.reason.split(" of ")[0] for stranger in run.strangers] == ["a copy"]


def test_a_broken_file_beside_good_ones_is_a_stranger(tmp_path: Path) -> None:
    files = write_run(tmp_path)
    broken = tmp_path / "trace.rank00002.json"
    broken.write_bytes(b"")
    run = find_run([tmp_path])
    assert run.files == tuple(files)
    assert run.strangers[0].path == broken
    assert run.strangers[0].reason.startswith("the file is empty")


def test_only_broken_files_are_an_error_of_one_line(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"trace.rank{rank:05d}.json").write_bytes(b"")
    with pytest.raises(TraceError, match=r"is empty.*nor can any of the other 2") as caught:
        find_run([tmp_path])
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_an_error_even_beside_good_ones(tmp_path: Path) -> None:
    files = write_run(tmp_path)
    with pytest.raises(TraceError, match=r"nothing\.json: cannot be read"):
        find_run([*files, tmp_path / "nothing.json"])


def test_an_empty_folder_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no trace files \(trace\*\.rank\*\.json\)"):
        find_run([tmp_path])


def test_only_traces_of_dsprof_are_its_own(tmp_path: Path) -> None:
    [native] = write_run(tmp_path / "run", world_size=1)
    profile = kineto.write(tmp_path / "profile.json", kineto.steps(1, 50, 10))
    for path, is_foreign in ((native, False), (profile, True)):
        [trace] = read_run(find_run([path]))
        assert trace.is_foreign == is_foreign


def test_an_unreadable_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(TraceError, match="the folder cannot be read: Permission denied"):
        find_run([tmp_path])


def test_an_absurd_start_does_not_break_the_reason(tmp_path: Path) -> None:
    write_run(tmp_path, run_key="a", started_epoch_ns=-(2**62))
    write_run(tmp_path, name="trace2", run_key="b")
    assert "started 1823-11-12" in find_run([tmp_path]).strangers[0].reason


def test_a_saved_diagnosis_is_known_from_a_trace_and_from_other_json(tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    saved.write_bytes(to_json(diagnosis()))
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"schema_version": 1, "results": []}))
    [trace] = write_run(tmp_path / "run", world_size=1)
    assert is_diagnosis(saved)
    assert not is_diagnosis(other)
    assert not is_diagnosis(trace)
    assert not is_diagnosis(tmp_path)
    assert not is_diagnosis(tmp_path / "missing.json")


def test_a_saved_diagnosis_is_named_as_what_it_is(tmp_path: Path) -> None:
    saved = tmp_path / "before.json"
    saved.write_bytes(to_json(diagnosis(2, 4)))
    with pytest.raises(TraceError, match="a saved diagnosis, which holds no trace"):
        find_run([saved])
    write_run(tmp_path / "traces")
    (found,) = find_run([saved, tmp_path / "traces"]).strangers
    assert found.reason.startswith("a saved diagnosis")


def test_a_readme_that_quotes_a_log_is_read_where_it_is_given_by_name(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("host0:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n" * 4)
    (tmp_path / "run1").mkdir()
    assert find_run([page]).files == (page,)
    with pytest.raises(
        TraceError, match="folders inside are not searched; give one of these: run1"
    ):
        find_run([tmp_path])


def test_logs_of_one_rank_are_not_compared_with_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def tells(reader: object) -> Facts:
        asked.append(reader)
        return Facts.LOG

    monkeypatch.setattr(LogReader, "tells", property(tells))
    count = 60
    for number in range(count):
        said = f"host{number}: NCCL version 2.20.{number}+cuda12.4\n"
        (tmp_path / f"node{number}.log").write_text(said)
    run = find_run([tmp_path])
    assert len([*run.files, *run.beside[0]]) == count
    assert len(asked) < count**2 // 4


def test_a_file_that_is_removed_while_its_folder_is_read_is_no_broken_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = write_run(tmp_path)
    listed = [*tmp_path.iterdir()]
    second.unlink()
    monkeypatch.setattr("dsprof.files.inputs.entries", lambda _: listed)
    [skipped] = find_run([tmp_path]).strangers
    assert (skipped.path, skipped.reason) == (second, "cannot be read: No such file or directory")
