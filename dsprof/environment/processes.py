"""A process of this machine, as its kernel shows it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

GONE = "X"
_ENDED = frozenset("XxZ")
_DOUBT_NS = 2_000_000_000  # of the start of a process, which the kernel counts in ticks


class ProcessLook(NamedTuple):
    """A process at this moment: the letter of its state, and the kernel's function it waits in."""

    state: str
    waits_in: str = ""


def pid_namespace() -> int:
    """Return the inode of the PID namespace of this process, 0 where there is none."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def look_at(pid: int, known_at_ns: int, proc: Path = Path("/proc")) -> ProcessLook:
    """Return the state of a process that lived at a time of the monotonic clock.

    One of the same number that began later is another one; then, and where there is none, the
    state is `GONE`.
    """
    try:
        fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        state, began_ticks = fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return ProcessLook(GONE)
    if state in _ENDED or on_monotonic_ns(began_ticks) > known_at_ns + _DOUBT_NS:
        return ProcessLook(GONE)
    return ProcessLook(state, _text(proc / str(pid) / "wchan"))


def on_monotonic_ns(began_ticks: int) -> int:
    """Return when a process began, in ticks since boot, as a time of the monotonic clock."""
    asleep_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return began_ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK") - asleep_ns


def _text(path: Path) -> str:
    try:
        text = path.read_text(errors="replace").strip()
    except OSError:
        return ""
    return "" if text == "0" else text
