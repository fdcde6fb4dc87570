"""The batch script of the docs is run: programs of Slurm are stand-ins, the rest is real."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.desk import ROOT

SLURM = {
    "scontrol": "echo 127.0.0.1",
    "srun": 'exec "$@"',
    "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
    "dsprof": f'exec {sys.executable} -m dsprof "$@"',
}


@pytest.mark.dist
def test_the_batch_script_trains_records_and_reports(tmp_path: Path) -> None:
    for name, line in SLURM.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "train.py").write_text((ROOT / "examples" / "ddp.py").read_text())
    job = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node1",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_SUBMIT_DIR": str(tmp_path),
    }
    done = subprocess.run(
        ["bash", "-eu", str(ROOT / "examples" / "clusters" / "slurm.sbatch")],
        cwd=tmp_path,
        env=os.environ | job,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "dsprof-7"
    assert len(list(folder.glob("trace*.rank*.json"))) == 2
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
