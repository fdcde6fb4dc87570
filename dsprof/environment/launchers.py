"""What launchers tell a process of its run and its place in it, by variables."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

_RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_RUN_IDS = (
    "TORCHELASTIC_RUN_ID",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "OMPI_MCA_ess_base_jobid",
    "PMI_JOBID",
    "MASTER_ADDR",
    "MASTER_PORT",
    *_RESTARTS,
)


def count(text: str) -> int:
    """Return a rank or a number of ranks as a launcher writes it, -1 where it is none."""
    return int(text) if text.isdecimal() and len(text) < 10 else -1


def run_key(environ: Mapping[str, str], world_size: int) -> str:
    """Return a short key of the run: the same on all its ranks, and of no node's own values.

    Launchers that reuse master address and port give successive runs the same key; the time at
    which a trace began separates those.
    """
    parts = [environ.get(name, "") for name in _RUN_IDS] + [str(world_size)]
    return _digest("\0".join(parts))


_LOCAL_RANKS = (
    ("SLURM_LOCALID", "SLURM_PROCID"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_RANK"),
    ("MPI_LOCALRANKID", "PMI_RANK"),
)
"""Ranks on the host as launchers name them, and the ranks that these belong to."""


def local_rank(environ: Mapping[str, str], rank: int) -> int:
    """Return the rank on the host of a rank; -1: unknown.

    A launcher of one process that starts the ranks itself passes its own variables on to all.
    """
    told = [environ.get(local) for local, own in _LOCAL_RANKS if environ.get(own) == str(rank)]
    return next((count(text) for text in (environ.get("LOCAL_RANK"), *told) if text), -1)


_NO_RUN_ID = "none"
"""torchrun's default id of a job."""


def job_keys(environ: Mapping[str, str]) -> list[str]:
    """Return what epochs of one job share, even if workers restart and the world size changes.

    torchrun's agent keeps its log folder, and Slurm keeps the step number of a job that it
    requeues. Successive jobs may share a rendezvous or a job of Slurm.
    """
    error_file, run_id = environ.get("TORCHELASTIC_ERROR_FILE", ""), environ.get(_RUN_IDS[0], "")
    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
    told = {
        "agent": str(Path(error_file).parents[2]) if error_file.count("/") > 2 else "",
        "slurm": f"{job}.{step}" if job and step else "",
        "perhaps rendezvous": "" if run_id == _NO_RUN_ID else run_id,
        "perhaps slurm": job,
    }
    return [f"{kind} {_digest(value)}" for kind, value in told.items() if value]


def restarts(environ: Mapping[str, str]) -> int:
    """Return how often the launchers had started the workers before; -1: unknown."""
    told = [count(environ[name]) for name in _RESTARTS if name in environ]
    return sum(told) if told and min(told) >= 0 else -1


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]
