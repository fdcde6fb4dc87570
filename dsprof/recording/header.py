"""The header of a trace: which process writes it, and since when."""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import asdict
from typing import Any

from dsprof._version import __version__
from dsprof.config import Config
from dsprof.environment import launchers, machine
from dsprof.environment.processes import pid_namespace
from dsprof.trace.schema import SCHEMA_VERSION, Header
from dsprof.trace.scope import clock

_ATTEMPTS = 5


def header_of(rank: int, world_size: int, *, backend: str, device: str, anonymized: bool) -> Header:
    """Return the header of the trace that this process begins now as a rank."""
    epoch_ns, monotonic_ns = _now_ns()
    return Header(
        schema_version=SCHEMA_VERSION,
        run_key=launchers.run_key(os.environ, world_size),
        rank=rank,
        world_size=world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        started_epoch_ns=epoch_ns,
        started_monotonic_ns=monotonic_ns,
        boot_id=machine.boot_id(),
        local_rank=launchers.local_rank(os.environ, rank),
        backend=backend,
        device=device,
        versions={"dsprof": __version__},
        anonymized=anonymized,
        pid_namespace=pid_namespace(),
    )


def header_of_training(
    rank: int, world_size: int, config: Config, backend: str, process_key: str
) -> Header:
    """Return the same of a process that trains: with its libraries, settings and jobs."""
    torch, deepspeed = sys.modules["torch"], sys.modules.get("deepspeed")
    header = header_of(
        rank,
        world_size,
        backend=backend,
        device=_device_of(torch, backend),
        anonymized=config.anonymize,
    )
    header.versions["torch"] = str(torch.__version__)
    if deepspeed is not None:
        header.versions["deepspeed"] = str(getattr(deepspeed, "__version__", ""))
    header.config = asdict(config)
    header.job_keys = [process_key, *launchers.job_keys(os.environ)]
    header.restarts = launchers.restarts(os.environ)
    return header


def _device_of(torch: Any, backend: str) -> str:
    """Return what a run computes on; torch.cuda.is_available() would spoil later forks."""
    may_use_it = "nccl" in backend and torch.backends.cuda.is_built()  # before it is initialized
    return "cuda" if torch.cuda.is_initialized() or may_use_it else "cpu"


def _now_ns() -> tuple[int, int]:
    """Read the wall clock and `clock` at the same moment.

    On a busy machine another process may run for 30 ms between two readings: of a few attempts
    the fastest is taken.
    """
    attempts = [(clock(), time.time_ns(), clock()) for _ in range(_ATTEMPTS)]
    before_ns, epoch_ns, after_ns = min(attempts, key=lambda one: one[2] - one[0])
    return epoch_ns, (before_ns + after_ns) // 2
