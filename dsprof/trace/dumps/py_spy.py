"""Stacks that py-spy printed: `py-spy dump --pid PID`."""

from __future__ import annotations

import re

_PROCESS = re.compile(r"Process (\d{1,9}): ")
_THREAD = re.compile(r'Thread \S+ \([^)]*\)(?:: "(.*)")?')
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
        elif len(frames) < _MOST_FRAMES and (frame := _frame(line)):
            frames.append(frame)
    stacks = {
        pid: threads.get(_MAIN) or next(filter(None, threads.values()), [])
        for pid, threads in found.items()
    }
    return {pid: tuple(stack) for pid, stack in stacks.items() if stack}


def _frame(line: str) -> str:
    """Return `file:line function` of `function (file:line)`, "" of any other line."""
    function, _, place = line.removesuffix(")").rpartition(" (")
    file, _, number = place.rpartition(":")
    is_frame = line.endswith(")") and function and file and number.isdecimal()
    return f"{place} {function}" if is_frame else ""
