"""A process of this machine, as its kernel shows it."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

GONE = "X"
_LONGEST = 1_000_000
_DOUBT_NS = 2_000_000_000  # of the start of a process, which the kernel counts in ticks


class ProcessLook(NamedTuple):
    """A process at this moment: the letter of its state, and the kernel's function it waits in."""

    state: str
    waits_in: str = ""


class Stat(NamedTuple):
    """The state of a process or of a thread, and its times in ticks of the kernel."""

    state: str
    cpu_ticks: int
    began_ticks: int  # since boot

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more: its parent has not yet asked how it ended."""
        return self.state in ("X", "x", "Z")


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
    stat = read_stat(proc / str(pid))
    if stat is None or stat.has_ended:
        return ProcessLook(GONE)
    if on_monotonic_ns(stat.began_ticks) > known_at_ns + _DOUBT_NS:
        return ProcessLook(GONE)
    return ProcessLook(stat.state, waits_in(proc / str(pid)))


def process_start(pid: int) -> int:
    """Return when a process began, in ticks since boot; 0 if it has ended, or is unknown."""
    stat = read_stat(Path("/proc", str(pid)))
    return 0 if stat is None or stat.has_ended else stat.began_ticks


def read_stat(folder: Path) -> Stat | None:
    """Return what /proc/PID or /proc/PID/task/TID says; None where there is no such folder."""
    fields = read_text(folder / "stat").rpartition(")")[2].split()  # the name may contain anything
    try:
        return Stat(fields[0], int(fields[11]) + int(fields[12]), int(fields[19]))
    except (IndexError, ValueError):
        return None


def waits_in(folder: Path) -> str:
    """Return the kernel's function in which the process of a folder of /proc waits, or ""."""
    text = read_text(folder / "wchan").strip()
    return "" if text == "0" else text


def read_text(path: Path) -> str:
    """Return a file of the kernel, up to a megabyte; "" where it cannot be read."""
    with suppress(OSError):
        return path.read_text("utf-8", "replace")[:_LONGEST]
    return ""


def on_monotonic_ns(began_ticks: int) -> int:
    """Return when a process began, in ticks since boot, as a time of the monotonic clock."""
    asleep_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
    return began_ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK") - asleep_ns
