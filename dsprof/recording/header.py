"""The header of a trace: which process writes it, and since when."""

from __future__ import annotations

import os
import socket
import time

from dsprof import environment
from dsprof._version import __version__
from dsprof.trace.schema import SCHEMA_VERSION, Header


def header_of(rank: int, world_size: int, *, backend: str, device: str, anonymized: bool) -> Header:
    """Return the header of the trace that this process begins now as a rank."""
    return Header(
        schema_version=SCHEMA_VERSION,
        run_key=environment.run_key(os.environ, world_size),
        rank=rank,
        world_size=world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        started_epoch_ns=time.time_ns(),
        started_monotonic_ns=time.perf_counter_ns(),
        boot_id=environment.boot_id(),
        local_rank=environment.local_rank(os.environ, rank),
        backend=backend,
        device=device,
        versions={"dsprof": __version__},
        anonymized=anonymized,
    )
