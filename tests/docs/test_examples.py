"""Programs of Slurm are stand-ins, the rest of what the docs show is real."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.desk import ROOT
from tests.factories.trace_files import write_run
from tests.ports import free_port

SLURM = {
    "scontrol": "echo 127.0.0.1",
    "srun": 'test "$1" = --cpus-per-task=4 && shift && exec "$@"',
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
        "SLURM_CPUS_PER_TASK": "4",
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


def dask_blocks() -> list[str]:
    page = (ROOT / "docs" / "background" / "scale.md").read_text()
    return [one for one in re.findall(r"```\n(.*?)```", page, re.S) if "dask worker" in one]


@pytest.mark.dist
@pytest.mark.parametrize("block", dask_blocks(), ids=["laptop", "Slurm"])
def test_commands_with_dask_report(block: str, tmp_path: Path) -> None:
    write_run(tmp_path / "dsprof-out", 3)
    programs = SLURM | {
        "pip": "true",
        "srun": 'while [ "$1" != dask ]; do shift; done; exec "$@"',
        "dask": f'exec {sys.executable} -m dask "$@"',
    }
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    port = str(free_port())
    block = block.replace("node1", "127.0.0.1").replace("/shared/", "").replace("8786", port)
    block = block.replace("dask scheduler", f"dask scheduler --port {port}")
    started = subprocess.Popen(
        ["bash", "-eu", "-c", block.replace("--nworkers 8", "--nworkers 1")],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert started.wait(240) == 0
    finally:
        os.killpg(started.pid, signal.SIGKILL)
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
