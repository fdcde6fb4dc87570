"""What is said of the processes of a run that stands, on this machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dsprof.analysis.aggregates.endings import Endings
from dsprof.diagnosis import hang_evidence
from dsprof.environment.machine import boot_id
from dsprof.environment.processes import GONE, ProcessLook
from dsprof.trace.run import RunFiles
from tests.factories.hangs import KILLED, without
from tests.factories.trace import header, summary


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> dict[int, ProcessLook]:
    """What each pid shows: the pid of rank n is 100 + n."""
    found = {101: ProcessLook("T"), 102: ProcessLook("S", "hrtimer_nanosleep")}
    monkeypatch.setattr(
        hang_evidence, "look_at", lambda pid, at_ns: found.get(pid, ProcessLook(GONE))
    )
    return found


def states(folder: Path, boot: str, age_s: float = 0) -> dict[int, str]:
    paths = [folder / f"{rank}.json" for rank in range(4)]
    for path in paths:
        path.touch()
        os.utime(path, (time.time() - age_s,) * 2)
    heads = tuple(header(rank, 4, boot_id=boot) for rank in range(4))
    endings = summary(*without(2, **KILLED))[Endings]
    seen = hang_evidence.seen_now(endings, RunFiles(tuple(paths), heads))
    return {rank: ending.symptoms.state for rank, ending in seen.ranks.items()}


def test_processes_of_this_machine_are_looked_at(
    tmp_path: Path, looks: dict[int, ProcessLook]
) -> None:
    assert states(tmp_path, boot_id()) == {0: GONE, 1: "T", 2: "S", 3: GONE}
    assert set(states(tmp_path, "another boot").values()) == {""}


def test_where_no_process_is_found_fresh_files_tell_that_they_live_elsewhere(
    tmp_path: Path, looks: dict[int, ProcessLook]
) -> None:
    looks.clear()
    assert set(states(tmp_path, boot_id()).values()) == {""}
    assert set(states(tmp_path, boot_id(), age_s=60).values()) == {GONE}
