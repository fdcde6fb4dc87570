"""Recordings that follow each other in one process are no epochs of a job that restarted."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsprof.errors import TraceError
from dsprof.trace.run import find_run
from dsprof.trace.schema import EXIT, NEW_GROUP, SWITCHED_OFF
from dsprof.trace.selection import Selection
from tests.factories.epochs import Start, write


def start(
    at: float, recording: str, reason: str = SWITCHED_OFF, pid: int = 7, namespace: int = 0
) -> Start:
    """What a process of each of two hosts recorded."""
    keys = ["agent a", f"process {recording}"]
    return Start(
        at,
        ends=((reason, ""), (reason, "")),
        fields=(
            ("job_keys", keys),
            ("pid", pid),
            ("restarts", 0),
            ("pid_namespace", namespace),
        ),
        hosts=("node-a", "node-b"),
    )


def names(paths: tuple[Path, ...]) -> set[str]:
    return {path.name.partition(".rank")[0] for path in paths}


def test_the_last_recording_of_a_process_is_read(tmp_path: Path) -> None:
    write(tmp_path, start(0, "1"), start(60, "2"), start(120, "3", EXIT))
    run = find_run([tmp_path])
    assert names(run.files) == {"trace.2"}
    assert not run.epochs
    assert len(run.strangers) == 4
    assert all("earlier recording of the same process" in one.reason for one in run.strangers)
    with pytest.raises(TraceError, match="no epoch 2: the newest run has 1 epoch"):
        find_run([tmp_path], Selection(epoch=2))


def test_a_last_line_that_nests_too_deeply_is_no_trailer(tmp_path: Path) -> None:
    write(tmp_path, start(0, "1"), start(60, "2"))
    for path in tmp_path.glob("trace.rank*"):
        lines = path.read_bytes().split(b"\n")
        lines[-3] = b'{"cat":"trailer","deep":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
        path.write_bytes(b"\n".join(lines))
    assert len(find_run([tmp_path]).epochs) == 2


def test_processes_of_one_number_in_two_containers_are_two(tmp_path: Path) -> None:
    write(tmp_path, start(0, "1", namespace=36), start(60, "2", namespace=48))
    assert len(find_run([tmp_path]).epochs) == 2


def test_an_earlier_recording_is_read_by_name(tmp_path: Path) -> None:
    write(tmp_path, start(0, "1"), start(60, "2"))
    assert names(find_run([*tmp_path.glob("trace.rank*")]).files) == {"trace"}


def test_process_groups_within_one_recording_are_epochs(tmp_path: Path) -> None:
    earlier = [start(0, "1", NEW_GROUP), start(30, "1")]
    write(tmp_path, *earlier, start(60, "2", NEW_GROUP), start(90, "2"))
    run = find_run([tmp_path])
    assert [names(epoch.files) for epoch in run.epochs] == [{"trace.2"}, {"trace.3"}]
    assert len(run.strangers) == 4


@pytest.mark.parametrize(
    "after", [start(60, "2", pid=8), start(60, "1")], ids=["another process", "the same recording"]
)
def test_a_restart_is_an_epoch(tmp_path: Path, after: Start) -> None:
    write(tmp_path, start(0, "1"), after)
    assert len(find_run([tmp_path]).epochs) == 2


def test_a_process_that_got_the_number_of_a_crashed_one_restarted(tmp_path: Path) -> None:
    write(tmp_path, start(0, "1", EXIT), start(60, "2"))
    assert len(find_run([tmp_path]).epochs) == 2


@pytest.mark.parametrize("later", [start(60, "2"), Start(60, fields=(("job_keys", ["agent b"]),))])
def test_what_was_recorded_after_a_trace_does_not_count(tmp_path: Path, later: Start) -> None:
    write(tmp_path, start(0, "1"), later)
    run = find_run([tmp_path], last=tmp_path / "trace.rank00000.json")
    assert names(run.files) == {"trace"}
    assert not run.epochs
    run = find_run([tmp_path], last=tmp_path / "trace.1.rank00000.json")
    assert names(run.files) == {"trace.1"}
