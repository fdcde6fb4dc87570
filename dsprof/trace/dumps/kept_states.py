"""Live states of processes that are gone: copied beside their traces, and removed from memory."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dsprof.environment.machine import boot_id
from dsprof.environment.processes import pid_namespace, process_start
from dsprof.errors import TraceError
from dsprof.files import notes
from dsprof.files.inputs import is_local
from dsprof.files.redaction import redact_text
from dsprof.trace.dumps.state_file import (
    SILENT_S,
    SIZE_BYTES,
    STACKS,
    RankState,
    kept_name,
    memory_folders,
    read_bytes,
    read_state,
    run_prefix,
)
from dsprof.trace.host_folders import shared_folder, traces_in
from dsprof.trace.lines import header_of
from dsprof.trace.schema import Header
from dsprof.trace.scope import clock

if TYPE_CHECKING:
    from dsprof.trace.run import RunFiles

_STALE_NS = 24 * 3600 * 10**9
"""The state of a process that is gone is removed so long after its last sign of life."""


def keep_states_of(run: RunFiles) -> None:
    """Copy the live states of dead ranks beside their traces: memory holds them for a day."""
    here = boot_id()
    places = {
        (header.run_key, shared_folder(path))
        for epoch in (run, *run.epochs)
        for path, header in zip(epoch.files, epoch.headers, strict=True)
        if header.boot_id == here and is_local(path)
    }
    for run_key, folder in places:
        keep_states_of_the_dead(run_key, folder)


def keep_states_of_the_dead(run_key: str, folder: Path) -> None:
    """Copy the states of this run's processes that are gone into the folder of their traces."""
    for memory in memory_folders():
        for path in memory.glob(f"{run_prefix(run_key)}-*.state"):
            with suppress(OSError, TraceError, ValueError):
                if process_start(int(path.stem.rpartition("-")[2])):
                    continue  # without reading what a running sibling has
                state = read_state(path)
                copy = folder / kept_name(state.header)
                is_new = not (copy.exists() or _may_live(state))
                if is_new and _has_trace(folder, state.header):
                    keep_state(path, copy)


def _may_live(state: RankState) -> bool:
    """Say whether a process has another number here, that of its container, and shows life."""
    is_here = state.header.pid_namespace in (0, pid_namespace())
    return not is_here and clock() - state.beat_ns < SILENT_S * 1e9


def _has_trace(folder: Path, header: Header) -> bool:
    """Say whether a folder has a trace of a process: without a launcher, all runs share a key."""
    traces = traces_in(folder, f"trace*.rank{header.rank:05d}.json")
    return any(found.pid == header.pid for found in filter(None, map(header_of, traces)))


def keep_state(path: Path, copy: Path) -> None:
    """Copy a state, whole or not at all.

    Raises:
        TraceError: it cannot be read.
        OSError: the copy cannot be written.
    """
    notes.put(copy, _redacted(read_bytes(path)), mode=0o644)


def _redacted(data: bytes) -> bytes:
    """Return a state with stacks that may be written: those in memory are as Python has them."""
    if not data[STACKS:].strip(b"\0"):
        return data
    stacks = redact_text(data[STACKS:].decode("ascii", errors="replace"))
    return data[:STACKS] + stacks.encode()[: SIZE_BYTES - STACKS].ljust(SIZE_BYTES - STACKS, b"\0")


def remove_stale(folder: Path) -> None:
    """Remove what processes of this user left behind that are long gone."""
    before_ns = time.time_ns() - _STALE_NS
    name = f"dsprof-{os.getuid()}-*.state"
    with suppress(OSError):
        for path in (*folder.glob(name), *folder.glob(f".{name}.*")):  # not put in its place
            with suppress(OSError):
                is_old = os.stat(path, follow_symlinks=False).st_mtime_ns < before_ns
                if is_old and _alive_epoch_ns(path) < before_ns:  # none is read that cannot be
                    path.unlink()


def _alive_epoch_ns(path: Path) -> int:
    """Return when a process last showed that it is alive; now, while it does run."""
    try:
        state = read_state(path)
    except TraceError:
        return 0
    if _is_alive(state):
        return time.time_ns()
    header = state.header
    return header.started_epoch_ns + state.beat_ns - header.started_monotonic_ns


def _is_alive(state: RankState) -> bool:
    """Say whether the process that keeps a state on this machine is still there."""
    return state.process_start == process_start(state.header.pid) != 0
