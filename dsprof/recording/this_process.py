"""What this process is: the program of a user, or a child that multiprocessing started."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dsprof.config import COMMAND_PID
from dsprof.environment.processes import on_monotonic_ns, pid_namespace, process_start
from dsprof.errors import TraceError
from dsprof.findings.frames import library
from dsprof.trace.dumps.state_file import memory_folders, read_sign


def when_child_ends(tell: Callable[[], None]) -> None:
    """Have a function called at the end of a child of multiprocessing, its exception being raised.

    In any other process it is never called.
    """
    if _parent() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, tell, exitpriority=0)


def is_exit_skipped() -> bool:
    """Say whether this process will not call what waits for its exit: a forked child does not."""
    if _parent() is None:
        return False
    process = sys.modules["multiprocessing.process"].current_process()
    return getattr(process, "_start_method", None) in ("fork", "forkserver")


def repeats_parent(rank: int, world_size: int) -> bool:
    """Say whether this process is a child by multiprocessing of a recorded rank, as the same rank.

    Such as the one in which torch saves checkpoints: it has the rank and the job of its parent, and
    a process group of its own. Other children are ranks of other jobs, as of one that a notebook
    starts, or began before the group of their parent.
    """
    parent = _parent()
    if parent is None or parent.pid is None:
        return False
    states = f"dsprof-{os.getuid()}-*-{rank}-{pid_namespace()}-{parent.pid}.state"
    start, began_ticks = process_start(parent.pid), process_start(os.getpid())
    began_ns = on_monotonic_ns(began_ticks + 1)
    for path in (path for memory in memory_folders() for path in memory.glob(states)):
        with suppress(TraceError, OSError):
            sign = read_sign(path)
            is_parent = (sign.process_start, sign.world_size) == (start, world_size)
            if is_parent and sign.started_ns < began_ns:
                return True
    return False


def is_command() -> bool:
    """Say whether this process is what `dsprof run` became, or the program with DSPROF=1."""
    return os.environ.get(COMMAND_PID) == str(os.getpid())


def is_script() -> bool:
    """Say whether this process runs a file of the user: no launcher, tool or line of code."""
    file = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    return file.endswith(".py") and not library(f"{file}:1")


def is_of_several() -> bool:
    """Say whether this process is one of several of a program, and not the first."""
    return _parent() is not None or os.environ.get("RANK", "0") != "0"


def _parent() -> Any:
    """Return the parent of a child of multiprocessing; None in any other process."""
    process = sys.modules.get("multiprocessing.process")
    return None if process is None else process.parent_process()
