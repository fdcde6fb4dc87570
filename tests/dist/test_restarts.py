"""torchrun starts workers again: both starts are epochs of one run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.trace.run import find_run
from dsprof.trace.selection import Selection
from tests.dist.launch import PROGRAMS, environment
from tests.dist.programs.restarts import EVERY, FAILS_IN, STEPS

pytestmark = [pytest.mark.dist]


def test_a_restart_of_torchrun_is_a_second_epoch(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=2"]
    command += ["--nproc-per-node=2", PROGRAMS / "restarts.py", tmp_path]
    recorded = {"DSPROF": "1", "DSPROF_OUT": str(tmp_path / "out")}
    subprocess.run(command, env=environment(recorded), check=True)
    diagnosis = diagnose(find_run([tmp_path / "out"]))
    assert (diagnosis.run.epoch, diagnosis.run.epochs) == (2, 2)
    assert diagnosis.quality.strangers == []
    first, second = diagnosis.epochs.rows
    assert (first.end, first.ranks, first.restarts) == ("crashed", [1], 0)
    assert "ValueError" in first.why
    assert (second.end, second.restarts, second.unrecorded) == ("exited", 1, 0)
    assert (second.first_step, second.steps) == (EVERY, STEPS - EVERY)
    assert second.repeated_steps == first.steps - EVERY
    assert first.steps in (FAILS_IN, FAILS_IN - 1)
    assert second.gap_ns is not None
    assert second.gap_ns > 0
    (found,) = [one for one in diagnosis.findings if one.rule == "restarted-job"]
    assert found.problem.startswith("1 restart cost ")
    earlier = diagnose(find_run([tmp_path / "out"], Selection(epoch=1)))
    assert earlier.run.steps == first.steps
    assert earlier.hang is not None
    assert earlier.hang.verdicts[0].ranks == (1,)
