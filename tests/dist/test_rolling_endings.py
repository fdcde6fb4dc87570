"""However a rank ends, the steps before it are kept in detail and a verdict says what happened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.diagnosis.model import Diagnosis
from dsprof.findings.finding import Status
from dsprof.trace.run import find_run, read_run
from tests.dist.launch import PROGRAMS, environment, launch
from tests.dist.programs.rolling_endings import STEPS
from tests.ports import free_port

PROGRAM = PROGRAMS / "rolling_endings.py"
pytestmark = [pytest.mark.dist]


def settings(folder: Path) -> dict[str, str]:
    named = {"OUT": str(folder), "MODE": "always", "BUDGET_MB": "2", "HANG_AFTER": "3"}
    return {f"DSPROF_{name}": value for name, value in named.items()}


def judged(folder: Path) -> Diagnosis:
    """Look at what is there of the end; return the diagnosis."""
    run = find_run([folder])
    for trace in read_run(run):
        assert 0 < trace.newest_from < STEPS
        assert max(step.step for step in trace.steps) == STEPS - 1
    found = diagnose(run)
    [stuck] = [one for one in found.findings if one.rule == "stuck-collective"]
    assert stuck.status is Status.FAIL
    assert stuck.ranks == (1,)
    assert f"never entered all_reduce {STEPS + 1:,}" in stuck.summary
    return found


@pytest.mark.parametrize("end", ["raises", "is killed", "is terminated", "hangs"])
@pytest.mark.long
def test_a_rank_of_a_launcher_ends(tmp_path: Path, end: str) -> None:
    assert launch(PROGRAM, args=[end], env=settings(tmp_path)).returncode != 0
    found = judged(tmp_path)
    trailers = {trace.rank: trace.trailer for trace in read_run(find_run([tmp_path]))}
    assert (trailers[1] is not None) == (end == "raises")
    assert ("ValueError" in str(found.findings)) == (end == "raises")


@pytest.mark.parametrize("how", ["spawn", pytest.param("fork", marks=pytest.mark.long)])
def test_a_rank_of_multiprocessing_raises(tmp_path: Path, how: str) -> None:
    command = [sys.executable, PROGRAM, "raises", str(free_port()), how]
    process = subprocess.run(command, env=environment(settings(tmp_path)), capture_output=True)
    assert b"ValueError: the learning rate" in process.stderr
    # The parent kills rank 0, perhaps before it has noticed.
    found = diagnose(find_run([tmp_path]))
    assert found.hang is not None
    assert found.hang.verdicts[0].ranks == (1,)
    trailers = {trace.rank: trace.trailer for trace in read_run(find_run([tmp_path]))}
    assert trailers[1] is not None
    assert trailers[1].exception == "ValueError"
    assert trailers[1].raised_at.endswith(" fail")
