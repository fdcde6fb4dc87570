"""Ranks that multiprocessing started: how they end is not seen as in other processes."""

from __future__ import annotations

import sys
from collections.abc import Callable


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
