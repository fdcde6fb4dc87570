"""Whether the process that records a rank still lives, as far as it shows from this machine."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from dsprof.environment.machine import boot_id
from dsprof.environment.processes import GONE, look_at, pid_namespace
from dsprof.errors import TraceError
from dsprof.trace.dumps.state_file import SILENT_S, Sign, memory_folders, read_sign, state_of
from dsprof.trace.rolling.parts import written_at_s
from dsprof.trace.schema import Header


class Life(NamedTuple):
    """When a process last wrote to its trace or its live state, and whether it is gone for sure."""

    silent_s: float
    is_gone: bool


def life_of(path: Path, header: Header) -> Life:
    """Return the last sign of life of a rank that has not ended its trace."""
    silent_s = time.time() - written_at_s(path)
    sign = _sign(header)
    if sign is not None:
        silent_s = min(silent_s, (time.monotonic_ns() - sign.beat_ns) / 1e9)
    # Older traces do not name the namespace: their process may have another number here.
    is_sure = header.pid_namespace != 0 or silent_s > SILENT_S
    return Life(silent_s, is_here(header) and is_sure and _is_gone(header))


def lives_here(header: Header) -> bool:
    """Say whether the process of a rank runs on this machine, for sure."""
    return is_here(header) and header.pid_namespace != 0 and not _is_gone(header)


def _is_gone(header: Header) -> bool:
    return look_at(header.pid, header.started_monotonic_ns).state == GONE


def is_here(header: Header) -> bool:
    """Say whether the process of a rank has its recorded number here, as far as the trace says.

    It ran on this machine since it was started, and in no container that numbers its own processes.
    """
    return _is_of_this_boot(header) and header.pid_namespace in (0, pid_namespace())


def _is_of_this_boot(header: Header) -> bool:
    return bool(header.boot_id) and header.boot_id == boot_id()


def _sign(header: Header) -> Sign | None:
    """Return the sign of life in the memory of this machine, if the process keeps one there."""
    name = state_of(header)
    if not name or not _is_of_this_boot(header):
        return None
    for folder in memory_folders():
        with suppress(TraceError):
            sign = read_sign(folder / name)
            if (sign.rank, sign.pid) == (header.rank, header.pid):
                return sign
    return None
