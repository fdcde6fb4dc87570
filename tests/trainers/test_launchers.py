"""Ranks that a library starts from one process, by environment variable alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dsprof.diagnosis.build import diagnose
from dsprof.trace.run import find_run
from tests.dist.launch import environment

for package in ("accelerate", "lightning"):
    pytest.importorskip(package, reason=f"no {package} here: make test-trainers installs it")

pytestmark = [pytest.mark.dist]

STEPS = 8


@pytest.mark.parametrize("how", ["debug_launcher", "ddp_spawn", "ddp_notebook"])
def test_ranks_of_one_process_are_recorded_to_their_end(tmp_path: Path, how: str) -> None:
    program = Path(__file__).with_name("launched.py")
    variables = environment({"DSPROF": "1", "DSPROF_OUT": str(tmp_path)})
    done = subprocess.run(
        [sys.executable, program, how], env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = diagnose(find_run([tmp_path]))
    assert (found.run.world_size, found.run.steps) == (2, STEPS)
    assert found.quality.missing_ranks == found.quality.unclean_ranks == []
    assert [one.rule for one in found.findings if one.severity.value == "critical"] == []
