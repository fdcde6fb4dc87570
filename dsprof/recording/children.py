"""Processes that others started: ranks of multiprocessing, and helpers of ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress

from dsprof.environment.processes import on_monotonic_ns, process_start
from dsprof.errors import TraceError
from dsprof.trace.dumps.state_file import memory_folders, read_sign


def when_child_ends(tell: Callable[[], None]) -> None:
    """Have a function called at the end of a child of multiprocessing, its exception being raised.

    In any other process it is never called.
    """
    util = sys.modules.get("multiprocessing.util")
    if util is not None and sys.modules["multiprocessing.process"].parent_process() is not None:
        util.Finalize(None, tell, exitpriority=0)


def is_exit_skipped() -> bool:
    """Say whether this process will not call what waits for its exit: a forked child does not."""
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None:
        return False
    return getattr(process.current_process(), "_start_method", None) in ("fork", "forkserver")


def repeats_parent(rank: int, world_size: int) -> bool:
    """Say whether this process is a child by multiprocessing of a recorded rank, as the same rank.

    Such as the one in which torch saves checkpoints: it has the rank and the job of its parent, and
    a process group of its own. Other children are ranks of other jobs, as of one that a notebook
    starts, or began before the group of their parent.
    """
    process = sys.modules.get("multiprocessing.process")
    parent = process.parent_process() if process is not None else None
    if parent is None or parent.pid is None:
        return False
    states = f"dsprof-{os.getuid()}-*-{rank}-{parent.pid}.state"
    start, began_ticks = process_start(parent.pid), process_start(os.getpid())
    began_ns = on_monotonic_ns(began_ticks + 1)
    for path in (path for memory in memory_folders() for path in memory.glob(states)):
        with suppress(TraceError, OSError):
            sign = read_sign(path)
            is_parent = (sign.process_start, sign.world_size) == (start, world_size)
            if is_parent and sign.started_ns < began_ns:
                return True
    return False
