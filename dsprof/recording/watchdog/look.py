"""Looks at this process from within, and at others of this machine by /proc.

Nothing here takes a lock or asks a device. What the kernel does not tell is absent.
"""

from __future__ import annotations

import dis
import os
import re
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType

from dsprof.environment.cgroups import Cgroup
from dsprof.environment.machine import listed
from dsprof.environment.processes import GONE, read_stat, read_text, waits_in
from dsprof.trace.dumps.hang_dump import ProcessState, ThreadStack

_PROC = Path("/proc")
_FRAMES = 60
_THREADS = 200
_SOCKETS = 64
_CHILDREN = 256
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_RUNNABLE = "R"
_NOTICEABLE_BYTES = 2_000_000  # our own threads read and write less
_TCP = {
    "01": "ESTABLISHED",
    "02": "SYN_SENT",
    "04": "FIN_WAIT1",
    "06": "TIME_WAIT",
    "08": "CLOSE_WAIT",
}
_WAITS = frozenset(("wait", "wait_tensor"))
_DEBUGGERS = r"[/\\](?:bdb|pdb|debugpy|pydevd\w*|_pydevd_bundle)\b"

_SAVERS = (
    r"[/\\]serialization\.py:\d+ _?save$|state_dict_saver\.py:| save_(?:16bit_model|checkpoint)$"
)


def stacks() -> list[ThreadStack]:
    """Return where all threads are in Python, those that are not ours first."""
    names = {thread.ident: thread.name for thread in list(threading.enumerate())}
    found = [
        ThreadStack(names.get(ident, ""), frames_of(frame))
        for ident, frame in list(sys._current_frames().items())[:_THREADS]
    ]
    return sorted(found, key=lambda one: (one.name.startswith("dsprof-"), one.name != "MainThread"))


def frames_of(frame: FrameType | None) -> tuple[str, ...]:
    """Return the calls of a thread, the innermost one first."""
    found: list[str] = []
    while frame is not None and len(found) < _FRAMES:
        code = frame.f_code
        found.append(f"{code.co_filename}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return tuple(found)


def waiting_threads() -> set[int]:
    """Return the threads whose innermost line of Python, dsprof's apart, calls a `wait` in C++."""
    return {ident for ident, frame in list(sys._current_frames().items()) if _waits(frame)}


def _waits(frame: FrameType | None) -> bool:
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("dsprof."):
        frame = frame.f_back
    if frame is None:
        return False
    code, line = frame.f_code, frame.f_lineno
    if _WAITS.isdisjoint(code.co_names):  # long code takes milliseconds to read
        return False
    spans = [(start, end) for start, end, of_line in code.co_lines() if of_line == line]
    return any(
        one.argval in _WAITS and any(start <= one.offset < end for start, end in spans)
        for one in dis.get_instructions(code)
        if isinstance(one.argval, str)
    )


def is_debugged(threads: list[ThreadStack], process: ProcessState) -> bool:
    """Say whether somebody looks at the process with a debugger."""
    frames = (frame for thread in threads for frame in thread.frames[:10])
    return bool(process.tracer) or any(re.search(_DEBUGGERS, frame) for frame in frames)


def is_saving(threads: list[ThreadStack]) -> bool:
    """Say whether the thread that trains writes a checkpoint."""
    frames = threads[0].frames if threads else ()
    return any(re.search(_SAVERS, frame) for frame in frames)


def process_state(pid: int, root: Path = _PROC) -> ProcessState:
    """Return what the kernel says of a process."""
    own = root / str(pid)
    stat = read_stat(own)
    if stat is None:
        return ProcessState(state=GONE if root.is_dir() else "")
    group = Cgroup(pid, root)
    return ProcessState(
        state=GONE if stat.has_ended else stat.state,
        waits_in=waits_in(own),
        tracer=_fields(read_text(own / "status")).get("TracerPid:", 0),
        cpu_ns=_cpu_of_training(own, pid) + _cpu_of_children(pid, root),
        io_bytes=sum(_fields(read_text(own / "io")).values()),
        thread_io_bytes=_moved_bytes(own / "task" / str(pid) / "io"),
        oom_kills=group.oom_kills(),
    )


def oom_kills(pid: int) -> int:
    """Return how many processes the kernel has killed for memory in the cgroup of one, ever."""
    return Cgroup(pid).oom_kills() or 0


def is_active(before: ProcessState, after: ProcessState, apart_ns: int) -> bool:
    """Say whether a process computes, reads or writes: it is slow, and not stuck.

    One that would compute, and waits for a CPU that others use, is so, too.
    """
    if _RUNNABLE in (before.state, after.state):
        return True
    computed_ns, moved_bytes = after.cpu_ns - before.cpu_ns, after.io_bytes - before.io_bytes
    return computed_ns > apart_ns // 20 or moved_bytes > _NOTICEABLE_BYTES


def _cpu_of_training(own: Path, pid: int) -> int:
    """Return what the first thread has computed, and those in which autograd runs backward.

    Not the whole process: a backend's thread that waits may spin.
    """
    tasks = [own / "task" / str(pid)]
    tasks += [t for t in listed(own / "task") if read_text(t / "comm").startswith("pt_autograd")]
    return sum(map(_ticks, tasks)) * _TICK_NS


def _cpu_of_children(pid: int, root: Path) -> int:
    """Return what the living descendants have computed: compilers, and workers that load data."""
    pending, seen = [pid], {pid}
    while pending and len(seen) < _CHILDREN:
        for task in listed(root / str(pending.pop()) / "task"):
            children = {int(word) for word in read_text(task / "children").split()} - seen
            pending += children
            seen |= children
    return sum(_ticks(root / str(child)) for child in seen - {pid}) * _TICK_NS


def _moved_bytes(io: Path) -> int:
    fields = _fields(read_text(io))
    return sum(fields.get(name, 0) for name in ("rchar:", "wchar:", "read_bytes:", "write_bytes:"))


def _ticks(process: Path) -> int:
    stat = read_stat(process)
    return stat.cpu_ticks if stat else 0


def sockets(pid: int) -> tuple[str, ...]:
    """Return the TCP connections of a process."""
    own = set()
    with suppress(OSError):
        for entry in os.scandir(_PROC / str(pid) / "fd"):
            with suppress(OSError):
                own.add(os.readlink(entry.path))
    found = []
    for table in ("tcp", "tcp6"):
        for line in read_text(_PROC / str(pid) / "net" / table).splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and f"socket:[{words[9]}]" in own and words[3] in _TCP:
                here, there = (int(end.rpartition(":")[2], 16) for end in words[1:3])
                unsent, unread = (int(count, 16) for count in words[4].split(":"))
                found.append(
                    f"{_TCP[words[3]]} port {here} to {there}, {unsent} unsent, {unread} unread"
                )
    return tuple(found[:_SOCKETS])


def _fields(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in pairs if len(words) > 1 and words[1].isdigit()}
