"""Stacks that py-spy printed: `py-spy dump --pid PID`."""

from __future__ import annotations

import re

_PROCESS = re.compile(r"Process (\d+): ")
_THREAD = re.compile(r'Thread \S+ \([^)]*\)(?:: "(.*)")?')
_FRAME = re.compile(r"(.+) \((.+):(\d+)\)")
_MAIN = "MainThread"
_MOST_FRAMES = 200

START = "Process "
LARGEST_BYTES = 1 << 20


def main_stacks(text: str) -> dict[int, tuple[str, ...]]:
    """Return where the main thread of each process is, the innermost call first.

    Of a process whose threads have no names the first one that has frames counts. Native frames,
    which have no line, are left out.
    """
    found: dict[int, dict[str, list[str]]] = {}
    threads: dict[str, list[str]] = {}
    frames: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if process := _PROCESS.match(line):
            threads = found.setdefault(int(process[1]), {})
            frames = []
        elif thread := _THREAD.fullmatch(line):
            frames = threads.setdefault(thread[1] or "", [])
        elif (frame := _FRAME.fullmatch(line)) and len(frames) < _MOST_FRAMES:
            frames.append(f"{frame[2]}:{frame[3]} {frame[1]}")
    stacks = {
        pid: threads.get(_MAIN) or next(filter(None, threads.values()), [])
        for pid, threads in found.items()
    }
    return {pid: tuple(stack) for pid, stack in stacks.items() if stack}
