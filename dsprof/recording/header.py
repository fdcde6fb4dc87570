"""The header of a trace: which process writes it, and since when."""

from __future__ import annotations

import os
import socket
import time

from dsprof import environment
from dsprof._version import __version__
from dsprof.environment.processes import pid_namespace
from dsprof.trace.schema import SCHEMA_VERSION, Header
from dsprof.trace.scope import clock

_ATTEMPTS = 5


def header_of(rank: int, world_size: int, *, backend: str, device: str, anonymized: bool) -> Header:
    """Return the header of the trace that this process begins now as a rank."""
    epoch_ns, monotonic_ns = _now_ns()
    return Header(
        schema_version=SCHEMA_VERSION,
        run_key=environment.run_key(os.environ, world_size),
        rank=rank,
        world_size=world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        started_epoch_ns=epoch_ns,
        started_monotonic_ns=monotonic_ns,
        boot_id=environment.boot_id(),
        local_rank=environment.local_rank(os.environ, rank),
        backend=backend,
        device=device,
        versions={"dsprof": __version__},
        anonymized=anonymized,
        pid_namespace=pid_namespace(),
    )


def _now_ns() -> tuple[int, int]:
    """Read the wall clock and `clock` at the same moment.

    On a busy machine another process may run for 30 ms between two readings: of a few attempts
    the fastest is taken.
    """
    attempts = [(clock(), time.time_ns(), clock()) for _ in range(_ATTEMPTS)]
    before_ns, epoch_ns, after_ns = min(attempts, key=lambda one: one[2] - one[0])
    return epoch_ns, (before_ns + after_ns) // 2
