"""A bar on a terminal while the ranks of a run are read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

_WIDTH = 30
_SMALL_BYTES = 1 << 23
"""A second process takes as long to start as it takes to read a packed trace of this size."""


def show_progress(done: int, total: int) -> None:
    """Redraw the bar; it is gone when all is read."""
    filled = "#" * (_WIDTH * done // total)
    text = f"reading: rank {done} of {total} [{filled:<{_WIDTH}}]"
    sys.stderr.write(f"\r{text}" if done < total else f"\r{' ' * len(text)}\r")
    sys.stderr.flush()


def progress_on_terminal() -> Callable[[int, int], None] | None:
    """Return what draws the bar; None where standard error is no terminal."""
    return show_progress if sys.stderr.isatty() else None


def processes_for(sizes: Sequence[int]) -> int:
    """Return how many processes are worth their start for files of these sizes in bytes."""
    worthwhile = sum(sizes) // _SMALL_BYTES
    return max(1, min(len(sizes), worthwhile, len(os.sched_getaffinity(0))))
