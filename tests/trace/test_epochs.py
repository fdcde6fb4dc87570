"""Which files are epochs of one run, and which are of another run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from socket import gethostname

import pytest

from dsprof.environment.machine import boot_id
from dsprof.environment.processes import pid_namespace
from dsprof.errors import TraceError
from dsprof.trace.run import find_run
from dsprof.trace.schema import EXIT
from dsprof.trace.selection import Selection
from tests.factories import flight
from tests.factories.epochs import START_NS, Start, write
from tests.factories.trace import SECOND

CRASH = ((EXIT, ""), (EXIT, "ValueError"))


def names(folder: Path, epoch: int | None = None) -> list[str]:
    return [path.name for path in find_run([folder], Selection(epoch=epoch)).files]


def test_the_last_epoch_is_read_and_each_other_on_request(tmp_path: Path) -> None:
    write(tmp_path, Start(0, ends=CRASH), Start(60))
    run = find_run([tmp_path])
    assert (run.epoch, len(run.epochs), run.strangers) == (2, 2, ())
    assert (
        names(tmp_path)
        == names(tmp_path, 2)
        == ["trace.1.rank00000.json", "trace.1.rank00001.json"]
    )
    assert names(tmp_path, 1) == ["trace.rank00000.json", "trace.rank00001.json"]


def test_an_epoch_that_is_not_there_is_said(tmp_path: Path) -> None:
    write(tmp_path, Start(0), Start(60))
    with pytest.raises(TraceError, match="no epoch 3: the newest run has 2 epochs"):
        find_run([tmp_path], Selection(epoch=3))


def test_a_world_that_shrinks_and_grows_is_one_run(tmp_path: Path) -> None:
    same = (("run_key", "run"),)  # torchelastic counts no restart where members change
    worlds = [Start(60 * n, world_size=size, fields=same) for n, size in enumerate((4, 2, 4))]
    write(tmp_path, *worlds)
    run = find_run([tmp_path])
    assert [len(epoch.files) for epoch in run.epochs] == [4, 2, 4]
    assert names(tmp_path, 2) == ["trace.1.rank00000.json", "trace.1.rank00001.json"]


def test_runs_without_a_common_key_are_two(tmp_path: Path) -> None:
    write(tmp_path, Start(0, ends=CRASH), Start(60, fields=(("job_keys", ["agent b"]),)))
    run = find_run([tmp_path])
    assert run.epochs == []
    assert len(run.strangers) == 2
    assert "of another run" in run.strangers[0].reason


@pytest.mark.parametrize(("ends", "epochs"), [(CRASH, 2), ((None, None), 2), ((), 0)])
def test_an_id_that_users_choose_tells_one_job_only_after_a_failure(
    tmp_path: Path, ends: tuple[tuple[str, str] | None, ...], epochs: int
) -> None:
    write(tmp_path, Start(0, ends=ends), Start(60), keys=("perhaps rendezvous 1",))
    assert len(find_run([tmp_path]).epochs) == epochs


def of(agent: str, at: float, ends: tuple[tuple[str, ...] | None, ...] = ()) -> Start:
    """Return a start by an agent of torchrun under the id that all of them are given."""
    return Start(at, ends=ends, fields=(("job_keys", [f"agent {agent}", "perhaps rendezvous 1"]),))


def test_a_job_that_ended_well_is_the_end_of_a_run(tmp_path: Path) -> None:
    write(tmp_path, of("a", 0, (None, None)), of("a", 60), of("b", 120, CRASH), of("c", 180))
    run = find_run([tmp_path])
    assert [epoch.files[0].name for epoch in run.epochs] == [
        "trace.2.rank00000.json",
        "trace.3.rank00000.json",
    ]
    assert len(run.strangers) == 4


def test_all_starts_of_a_job_are_of_its_run(tmp_path: Path) -> None:
    both = (("job_keys", ["agent a", "agent b"]),)
    alone = (("job_keys", ["agent b"]),)
    first = (("job_keys", ["agent a"]),)
    write(tmp_path, Start(0, fields=both), Start(60, fields=alone), Start(120, fields=first))
    assert len(find_run([tmp_path]).epochs) == 3


def test_a_job_that_still_runs_is_another_run(tmp_path: Path) -> None:
    """Two runs at once are given one id and one folder."""
    lives = (
        ("host", gethostname()),
        ("pid", os.getpid()),
        ("boot_id", boot_id()),
        ("pid_namespace", pid_namespace()),
        ("started_monotonic_ns", time.monotonic_ns()),
    )
    running = Start(0, ends=(None, None), fields=lives)
    write(tmp_path, running, Start(60), keys=("perhaps rendezvous 1",))
    assert find_run([tmp_path]).epochs == []


def test_a_rank_that_one_launcher_started_with_the_others_may_be_hours_late(tmp_path: Path) -> None:
    """Rank 1 prepares data, the others wait in a barrier with a timeout of a day."""
    write(tmp_path, Start(0))
    late = tmp_path / "trace.rank00001.json"
    late.write_bytes(
        late.read_bytes().replace(b"%d" % START_NS, b"%d" % (START_NS + 7200 * SECOND))
    )
    run = find_run([tmp_path])
    assert ([path.name[-10:] for path in run.files], run.epochs) == (
        ["00000.json", "00001.json"],
        [],
    )
    late.write_bytes(late.read_bytes().replace(b"agent a", b"agent b"))
    assert len(find_run([tmp_path]).files) == 1


def test_restarts_are_in_their_order_whatever_the_clock_says(tmp_path: Path) -> None:
    """The second start ended well; the clock was set back by an hour before it."""
    write(tmp_path, Start(3600, ends=CRASH), Start(0))
    run = find_run([tmp_path])
    assert [epoch.headers[0].restarts for epoch in run.epochs] == [0, 1]
    assert names(tmp_path) == ["trace.1.rank00000.json", "trace.1.rank00001.json"]


def test_another_run_between_two_epochs_is_none(tmp_path: Path) -> None:
    other = (("job_keys", ["agent b"]), ("run_key", "other"))
    write(tmp_path, Start(0, ends=CRASH), Start(60, fields=other), Start(120))
    run = find_run([tmp_path], Selection(epoch=1))
    assert names(tmp_path, 1) == ["trace.rank00000.json", "trace.rank00001.json"]
    assert len(run.epochs) == 2
    assert [stranger.path.name for stranger in run.strangers] == [
        "trace.1.rank00000.json",
        "trace.1.rank00001.json",
    ]


def test_a_dump_is_joined_to_the_epoch_in_which_it_was_made(tmp_path: Path) -> None:
    began = flight.EPOCH_NS / SECOND - START_NS / SECOND
    write(tmp_path, Start(began, ends=CRASH), Start(began + 600))
    dump = flight.write(tmp_path, 0, flight.document([flight.call(1)], {"0": range(2)}))
    assert find_run([tmp_path], Selection(epoch=1)).beside == {0: [dump]}
    last = find_run([tmp_path])
    assert last.beside == {}
    assert [one.reason for one in last.strangers] == ["of epoch 1, not 2"]
