from __future__ import annotations

import gc
import math
import os
import sys
from pathlib import Path

import pytest

from dsprof.analysis.aggregates import AGGREGATES
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.engine import Processes
from dsprof.analysis.summarise import summarise
from dsprof.cli.loading import processes_for
from dsprof.diagnosis.build import diagnose
from dsprof.diagnosis.document import to_json
from dsprof.errors import TraceError
from dsprof.trace.run import RankFiles, find_run
from tests.factories import kineto
from tests.factories.trace_files import write_run


def profiles(folder: Path) -> None:
    for rank in range(3):
        events = kineto.steps(4, 30 + rank, 20)
        kineto.write(folder / f"{rank}.json", events, rank, world_size=3)


def hosts(folder: Path) -> None:
    """Profiles of two hosts, whose clocks must be compared first."""
    for rank in range(2):
        events = [kineto.collective(30 * at + at * at % 17 + 5 * rank, 9) for at in range(30)]
        kineto.write(folder / f"{rank}.json", events, rank, host_name=f"node-{rank}")


@pytest.mark.parametrize("write", [profiles, hosts, lambda folder: write_run(folder, 3)])
def test_several_processes_say_the_same_as_one(tmp_path: Path, write) -> None:
    write(tmp_path)
    run = find_run([tmp_path])
    one, three = diagnose(run), diagnose(run, engine=Processes(3))
    assert to_json(one) == to_json(three)


def test_clocks_are_aligned_in_processes_too(tmp_path: Path) -> None:
    hosts(tmp_path)
    summary = summarise(find_run([tmp_path]), [Steps, Run], engine=Processes(2))
    assert summary[Run].clock_bound_ns


def test_every_rank_is_told_of(tmp_path: Path) -> None:
    write_run(tmp_path, 3)
    told: list[tuple[int, int]] = []
    summarise(find_run([tmp_path]), [Steps], progress=lambda *now: told.append(now))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_what_is_known_of_the_files_of_a_rank_is_held_while_it_is_read(tmp_path: Path) -> None:
    write_run(tmp_path, 8)
    held: list[int] = []

    def count(done: int, total: int) -> None:
        held.append(sum(isinstance(one, RankFiles) for one in gc.get_objects()))

    summarise(find_run([tmp_path]), [Steps], progress=count)
    assert max(held) <= 2


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python looks there before it asks")
def test_processes_import_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, 2)
    (tmp_path / "multiprocessing.py").write_text("open('executed', 'w')")
    monkeypatch.chdir(tmp_path)
    summary = summarise(find_run([tmp_path]), [Run], engine=Processes(2))
    assert sorted(summary[Run].ranks) == [0, 1]
    assert not (tmp_path / "executed").exists()
    assert "PYTHONSAFEPATH" not in os.environ


def test_a_file_that_vanishes_is_passed_over_from_a_process_too(tmp_path: Path) -> None:
    write_run(tmp_path, 3)
    run = find_run([tmp_path])
    run.files[1].unlink()
    found = summarise(run, AGGREGATES, engine=Processes(2))[Run]
    assert sorted(found.ranks) == [0, 2]
    assert "rank00001" in found.strangers[0]
    for file in (run.files[0], run.files[2]):
        file.unlink()
    with pytest.raises(TraceError, match="rank00000"):
        summarise(run, AGGREGATES, engine=Processes(2))


def test_small_files_are_not_worth_a_process() -> None:
    assert processes_for([1000, 1000]) == 1
    assert processes_for([1 << 30]) == 1


def test_processes_fit_into_cpus_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsprof.environment.cgroups.usable_cpus", lambda: 8)
    monkeypatch.setattr("dsprof.environment.cgroups.usable_bytes", lambda: math.inf)
    assert processes_for([1 << 30] * 64) == 8
    monkeypatch.setattr("dsprof.environment.cgroups.usable_bytes", lambda: 1e9)
    assert processes_for([1 << 30] * 64) == 2
    monkeypatch.setattr("dsprof.environment.cgroups.usable_bytes", lambda: 1e6)
    assert processes_for([1 << 30] * 64) == 1
