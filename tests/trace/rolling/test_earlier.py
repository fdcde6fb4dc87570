"""A job that restarts records into the same folder: one budget and few files for all starts."""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.recording.recorder import live_state
from dsprof.recording.recorder.live_state import LiveState
from dsprof.trace.dumps import state_file
from dsprof.trace.dumps.kept_states import keep_state
from dsprof.trace.host_folders import HOSTS, MANY_RANKS
from dsprof.trace.reader import read_header, read_trace
from dsprof.trace.rolling import earlier
from dsprof.trace.rolling.earlier import MOVED, put_away
from dsprof.trace.rolling.parts import PROFILE, files_of_rank, part_of
from dsprof.trace.run import RunFiles, find_run, read_run
from dsprof.trace.schema import NEW_GROUP, Trailer
from dsprof.trace.selection import Selection
from tests.factories import kineto
from tests.factories.month import STEP_NS, FastMotion, size_of
from tests.factories.trace import header

BUDGET_BYTES = 2_000_000
ARCHIVE = "trace.rank00000.earlier.zip"
BOOK = "trace.rank00000.json"

KILLED = """
import os
import signal
import sys
from pathlib import Path
from tests.factories.month import FastMotion
run = FastMotion(Path(sys.argv[1]), int(sys.argv[2]), start=int(sys.argv[3]))
with run.running():
    run.train(1000)
    run.wait_for_tails()
    if sys.argv[4] == "forks" and os.fork() == 0:
        run.writer.abandon()
    elif sys.argv[4] == "forks":
        signal.pause()
    files = map(os.path.realpath, Path("/proc/self/fd").iterdir())
    print(sum(sys.argv[1] in file for file in files), flush=True)
    sys.stdin.read()
    os._exit(0)
"""


def record(
    folder: Path, start: int, steps: int = 2000, rank: int = 0, local_rank: int = -1
) -> list[int]:
    """Record one start; return the bytes in the folder meanwhile."""
    sizes: list[int] = []
    world = 2 if local_rank < 0 else MANY_RANKS
    run = FastMotion(folder, BUDGET_BYTES, rank, world, start, local_rank=local_rank)
    with run.running():
        run.train(steps, lambda: sizes.append(size_of(folder)))
    assert run.writer.error is None
    return [*sizes, size_of(folder)]


@contextmanager
def killed(folder: Path, how: str = "", start: int = 0) -> Iterator[int]:
    """Record a start of which the process is killed; its child, if it "forks", lives inside.

    Yields how many files of the folder the last of them had open.
    """
    command = [sys.executable, "-c", KILLED, folder, str(BUDGET_BYTES), str(start), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        open_files = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait()
        yield open_files


def steps_of(run: RunFiles) -> list[int]:
    """Return how many steps the sums of each epoch hold."""
    hours = (
        [one for one in read_trace(epoch.files[0]).rollups.values() if one.length_s == 3600]
        for epoch in run.epochs
    )
    return [sum(one.steps for one in found) for found in hours]


def names(paths: Iterable[Path]) -> set[str]:
    return {path.name for path in paths}


def test_all_starts_have_one_budget_and_few_files(tmp_path: Path) -> None:
    sizes: list[int] = []
    for start in range(4):
        sizes += record(tmp_path, start)
        assert len(list(tmp_path.iterdir())) <= 8
    assert max(sizes) <= BUDGET_BYTES
    run = find_run([tmp_path])
    assert not run.strangers
    assert steps_of(run) == [2000] * 4
    assert len(diagnose(run).epochs.rows) == 4


def test_a_killed_start_keeps_its_last_steps(tmp_path: Path) -> None:
    with killed(tmp_path):
        before = read_trace(tmp_path / BOOK)
    record(tmp_path, 1, steps=10)
    run = find_run([tmp_path], Selection(epoch=1))
    assert run.files == (tmp_path / ARCHIVE / BOOK,)
    after = read_trace(run.files[0])
    assert after.trailer is None
    assert after.newest_from == before.newest_from > 0
    assert after.rollups == before.rollups
    assert [step.step for step in after.steps] == [step.step for step in before.steps]
    assert diagnose(run).steps.measured_steps > 20
    chosen = read_trace(run.files[0], range(5, 7))
    assert [step.step for step in chosen.steps if step.step in range(5, 7)] == [5, 6]


def test_the_oldest_details_leave_first_and_sums_last(tmp_path: Path) -> None:
    for start in range(3):
        record(tmp_path, start)
    put_away(tmp_path, 0, 1_200_000)
    run = find_run([tmp_path])
    assert steps_of(run) == [2000] * 3
    details = [len(read_trace(epoch.files[0]).steps) for epoch in run.epochs]
    assert details[0] < details[1] < details[2]
    rows = diagnose(run).epochs.rows
    assert [row.steps for row in rows] == [2000] * 3
    spent = [(row.last_step_ns or 0) - (row.first_step_ns or 0) for row in rows]
    assert all(abs(one - 2000 * STEP_NS) < 20 * 10**9 for one in spent)


def test_a_clock_that_was_set_back_does_not_make_the_newest_start_the_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as apart:
        apart.setattr(earlier, "_is_over", lambda book, locks: False)  # as of another machine
        for start in (5, 6, 0):  # an hour each
            record(tmp_path, start)
    put_away(tmp_path, 0, 800_000)  # less than what they take together
    run = find_run([tmp_path])
    with zipfile.ZipFile(tmp_path / ARCHIVE) as archive:
        order = [name for name in archive.namelist() if name.endswith(".json")]
    assert order == ["trace.2.rank00000.json", "trace.1.rank00000.json", BOOK]
    details = {Path(epoch.files[0]).name: read_trace(epoch.files[0]).steps for epoch in run.epochs}
    assert len(details[order[2]]) < 10 < len(details[order[0]])
    assert steps_of(run) == [2000] * 3


def test_a_recording_of_another_machine_is_judged_by_the_clock_of_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed(tmp_path):
        pass
    monkeypatch.setattr(earlier, "boot_id", lambda: "another")
    with monkeypatch.context() as ahead:
        now_s = time.time()
        ahead.setattr(time, "time", lambda: now_s + 3600)
        put_away(tmp_path, 0, BUDGET_BYTES)
    assert (tmp_path / BOOK).exists()


def test_sums_of_killed_starts_stay_when_their_details_leave(tmp_path: Path) -> None:
    with killed(tmp_path):
        parts = [*tmp_path.iterdir()]
        whole = read_trace(tmp_path / BOOK).rollups
    books = [BOOK, *(BOOK.replace(".", f".{start}.", 1) for start in range(1, 4))]
    for path in parts:
        for start in range(1, 4):
            shutil.copy(path, tmp_path / path.name.replace(".", f".{start}.", 1))
    put_away(tmp_path, 0, size_of(tmp_path) * 9 // 8)
    traces = [read_trace(tmp_path / ARCHIVE / book) for book in books]
    assert [trace.rollups for trace in traces] == [whole] * 4
    assert not traces[0].steps
    assert traces[3].steps


def test_profiles_of_earlier_starts_are_in_the_archive(tmp_path: Path) -> None:
    record(tmp_path, 0)
    profile = part_of(tmp_path / BOOK, PROFILE)
    profile.write_bytes(gzip.compress(kineto.document(kineto.steps(3, 20, 5), host_name="host")))
    put_away(tmp_path, 0, BUDGET_BYTES)
    assert names(tmp_path.iterdir()) == {ARCHIVE}
    [trace] = read_run(find_run([tmp_path]))
    assert trace.profile is not None
    record(tmp_path, 1)
    part_of(tmp_path / "trace.1.rank00000.json", PROFILE).write_bytes(bytes(BUDGET_BYTES))
    assert put_away(tmp_path, 0, BUDGET_BYTES).nbytes < BUDGET_BYTES // 8
    assert names(tmp_path.iterdir()) == {ARCHIVE}
    run = find_run([tmp_path])
    assert steps_of(run) == [2000] * 2
    assert [one.path.name for one in run.strangers] == [profile.name]


def test_a_recording_that_is_written_stays(tmp_path: Path) -> None:
    first = FastMotion(tmp_path, BUDGET_BYTES)
    with first.running():
        first.train(3000)
        before = names(tmp_path.iterdir())
        record(tmp_path, 1, steps=3000)
        assert before < names(tmp_path.iterdir())
        assert ARCHIVE not in names(tmp_path.iterdir())
    assert size_of(tmp_path) <= BUDGET_BYTES
    assert steps_of(find_run([tmp_path])) == [3000, 3000]


def test_what_ends_in_the_same_process_makes_room_first(tmp_path: Path) -> None:
    first = FastMotion(tmp_path, BUDGET_BYTES)
    with first.running():
        first.train(2000)
        first.writer.end(lambda: Trailer(NEW_GROUP), [])
        second = FastMotion(tmp_path, BUDGET_BYTES, start=1, before=first.writer)
        with second.running():
            second.train(10)
    assert len(names(tmp_path.iterdir())) == 7
    assert find_run([tmp_path], Selection(epoch=1)).files == (tmp_path / ARCHIVE / BOOK,)


def test_another_machine_is_given_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with killed(tmp_path):
        pass
    monkeypatch.setattr(earlier, "boot_id", lambda: "another")
    put_away(tmp_path, 0, BUDGET_BYTES)
    assert ARCHIVE not in names(tmp_path.iterdir())
    for path in tmp_path.iterdir():
        os.utime(path, (1, 1))
    put_away(tmp_path, 0, BUDGET_BYTES)
    assert names(tmp_path.iterdir()) == {ARCHIVE}


def test_a_forked_child_does_not_hold_a_recording(tmp_path: Path) -> None:
    with killed(tmp_path / "other") as open_files:
        assert open_files == 7  # with the folder
    with killed(tmp_path, "forks") as open_files:
        assert open_files == 0
        put_away(tmp_path, 0, BUDGET_BYTES)
        assert names(tmp_path.iterdir()) == {ARCHIVE, "other"}


def test_files_of_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, 0, steps=10)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    before = names(tmp_path.iterdir())
    assert put_away(tmp_path, 0, BUDGET_BYTES).nbytes == 0
    assert names(tmp_path.iterdir()) == before


def test_renamed_files_links_and_other_ranks_stay(tmp_path: Path) -> None:
    record(tmp_path, 0, steps=10)
    record(tmp_path, 0, steps=10, rank=1)
    mine = filter(Path.exists, files_of_rank(tmp_path / BOOK))
    good = [path.rename(tmp_path / f"good.{path.name}") for path in mine]
    (tmp_path / BOOK).symlink_to(good[0])
    shutil.copy(tmp_path / "trace.rank00001.json", tmp_path / "trace.1.rank00000.json")
    before = names(tmp_path.iterdir())
    assert put_away(tmp_path, 0, BUDGET_BYTES).nbytes == 0
    assert names(tmp_path.iterdir()) == before


@pytest.mark.parametrize("kind", ["file", "link"])
def test_an_archive_that_is_not_ours_stays(tmp_path: Path, kind: str) -> None:
    foreign = tmp_path / (ARCHIVE if kind == "file" else "other.zip")
    if kind == "file":
        foreign.write_bytes(b"mine")
    else:
        zipfile.ZipFile(foreign, "w").close()
        (tmp_path / ARCHIVE).symlink_to(foreign)
    data = foreign.read_bytes()
    record(tmp_path, 0, steps=10)
    before = names(tmp_path.iterdir())
    put_away(tmp_path, 0, BUDGET_BYTES)
    assert foreign.read_bytes() == data
    assert (tmp_path / ARCHIVE).is_symlink() == (kind == "link")
    assert before <= names(tmp_path.iterdir())


def test_a_kill_while_files_are_removed_loses_nothing(tmp_path: Path) -> None:
    record(tmp_path, 0)
    folder = tmp_path / "copy"
    shutil.copytree(tmp_path, folder)
    put_away(tmp_path, 0, BUDGET_BYTES)
    whole = read_trace(tmp_path / ARCHIVE / BOOK)
    shutil.copy(folder / BOOK, tmp_path)
    record(tmp_path, 1, steps=10)
    assert not (tmp_path / BOOK).exists()
    again = read_trace(tmp_path / ARCHIVE / BOOK)
    assert (again.rollups, again.steps) == (whole.rollups, whole.steps)


def test_a_copy_that_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    record(tmp_path, 0, steps=10)
    (tmp_path / ".trace.rank00000.kept.gz").write_bytes(b"begun")
    put_away(tmp_path, 0, BUDGET_BYTES)
    assert names(tmp_path.iterdir()) == {ARCHIVE}


def test_copies_that_a_killed_process_left_are_not_read(tmp_path: Path) -> None:
    for start in (0, 1):
        record(tmp_path, start, steps=10)
    shutil.copy(tmp_path / ARCHIVE, tmp_path / f".{ARCHIVE}")
    (tmp_path / ".trace.1.rank00000.kept.gz").write_bytes(b"begun")
    run = find_run([tmp_path])
    assert (len(run.epochs), run.strangers) == (2, ())


def test_parts_of_which_the_book_was_removed_are_not_in_the_way(tmp_path: Path) -> None:
    record(tmp_path, 0, steps=10)
    (tmp_path / BOOK).unlink()
    record(tmp_path, 1, steps=10)
    assert len(read_trace(tmp_path / "trace.1.rank00000.json").steps) == 10


def test_a_file_is_on_disk_before_it_replaces_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, replaced = set[int](), set[str]()
    fsync, replace = os.fsync, os.replace

    def synchronise(file: BinaryIO | int) -> None:
        fsync(file)
        synced.add(os.fstat(file if isinstance(file, int) else file.fileno()).st_ino)

    def exchange(source: Path | str, target: Path | str, **folders: int) -> None:
        assert os.stat(tmp_path / source).st_ino in synced
        replaced.add(Path(target).suffix)
        replace(source, target, **folders)

    monkeypatch.setattr(os, "fsync", synchronise)
    monkeypatch.setattr(os, "replace", exchange)
    record(tmp_path, 0)
    put_away(tmp_path, 0, BUDGET_BYTES)
    assert replaced == {".gz", ".zip"}


def test_the_state_of_a_killed_process_goes_with_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, memory = tmp_path / "run", tmp_path / "memory"
    memory.mkdir()
    for module in (live_state, state_file):
        monkeypatch.setattr(module, "memory_folders", lambda: iter([memory]))
    for start in range(3):
        with killed(folder, start=start):
            begun = read_header(folder / BOOK.replace(".", f".{start}." if start else ".", 1))
        live = LiveState()
        assert live.open(begun, lambda definition: definition) == ""
        assert live.path is not None
        keep_state(live.path, folder / state_file.kept_name(begun))
        put_away(folder, 0, BUDGET_BYTES)
        assert not [*memory.iterdir()]
        assert names(folder.iterdir()) == {ARCHIVE}
    [trace, *_] = read_run(find_run([folder]))
    assert trace.state is not None
    assert trace.state.header.started_monotonic_ns == begun.started_monotonic_ns


def test_states_of_other_recordings_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (live_state, state_file):
        monkeypatch.setattr(module, "memory_folders", lambda: iter([tmp_path]))
    for pid in (1, 2, 3):
        live = LiveState()
        assert live.open(header(pid=pid), lambda definition: definition) == ""
        assert live.path is not None
        keep_state(live.path, tmp_path / state_file.kept_name(header(pid=pid)))
    before = names(tmp_path.iterdir())
    put_away(tmp_path, 0, BUDGET_BYTES)
    assert names(tmp_path.iterdir()) == before


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a host with two ranks."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    return tmp_path / HOSTS / "host"


def test_recordings_of_ranks_that_moved_to_other_hosts_share_one_budget(host: Path) -> None:
    for start in range(6):
        record(host, start, 1000, rank=2 * (start // 2), local_rank=0)
    assert len(names(host.iterdir())) == 8
    moved = host / MOVED
    assert moved.stat().st_size <= BUDGET_BYTES // 8
    assert size_of(host) <= BUDGET_BYTES
    run = find_run([host.parent.parent])
    assert not run.strangers
    assert steps_of(run) == [1000] * 6
    details = [bool(read_trace(epoch.files[0]).steps) for epoch in run.epochs]
    assert not details[0]
    assert details[3]  # the newest that moved


def test_only_the_first_rank_of_a_host_moves_others(host: Path) -> None:
    record(host, 0, 10, rank=4)
    record(host, 0, 10, rank=1)
    record(host, 1, 10, rank=5, local_rank=1)
    assert MOVED not in names(host.iterdir())
    live = FastMotion(host, BUDGET_BYTES, 8, start=1)
    with live.running():
        live.train(3000)
        record(host, 1, 10, rank=4, local_rank=0)
        with zipfile.ZipFile(host / MOVED) as archive:
            assert {one.split(".")[1] for one in archive.namelist()} == {"rank00001"}
    assert (host / "trace.rank00005.json").exists()


def test_a_rank_that_returns_to_a_host_overwrites_nothing(host: Path) -> None:
    for start, rank in enumerate((0, 2, 0, 2)):
        record(host, start, 10, rank, local_rank=0)
    assert steps_of(find_run([host.parent.parent])) == [10] * 4
