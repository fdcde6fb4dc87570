"""Processes that others started: ranks of multiprocessing, and helpers of ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from dsprof.environment.processes import Stat, on_monotonic_ns, read_stat
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


def is_of_rank() -> bool:
    """Say whether a rank that is recorded started this process, itself or by another one.

    Such as the one in which torch saves checkpoints: it has the rank and the job of its parent, and
    a process group of its own. Ranks that a rank starts, as Lightning does, begin before its group.
    """
    above = dict(_line_of_descent(os.getpid()))
    began_ns = on_monotonic_ns(above[os.getpid()].began_ticks + 1) if above else 0
    states = f"dsprof-{os.getuid()}-*.state"
    for path in (path for memory in memory_folders() for path in memory.glob(states)):
        with suppress(TraceError, OSError, ValueError):
            stat = above.get(int(path.stem.rpartition("-")[2]))
            if stat is not None:
                sign = read_sign(path)
                if sign.process_start == stat.began_ticks and sign.started_ns < began_ns:
                    return True
    return False


def _line_of_descent(pid: int) -> Iterator[tuple[int, Stat]]:
    """Yield a process, the one that started it, and so on."""
    while pid and (stat := read_stat(Path("/proc", str(pid)))) is not None:
        yield pid, stat
        pid = stat.parent
