"""Stacks that py-spy printed: `py-spy dump --pid PID`."""

from __future__ import annotations

import re
from itertools import islice, takewhile

_PROCESS = re.compile(r"Process (\d{1,9}): ")
_THREAD = re.compile(r'Thread \S+ \([^)]*\)(?:: "(.*)")?')
MAIN = "MainThread"
_MOST_FRAMES = 200

_MOST_NATIVE = 3
_LONGEST_NATIVE = 120
_NATIVE = re.compile(
    # What all programs call, and how Python came there, says nothing.
    r"(?!0x|std::|pybind11::|.* \((?:libc|libpthread|libstdc\+\+|libpython\d*)[.-]).* \([^:()]+\)"
)

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
        pid: threads.get(MAIN) or next(filter(None, threads.values()), [])
        for pid, threads in found.items()
    }
    return {pid: tuple(stack) for pid, stack in stacks.items() if stack}


def native_calls(text: str) -> tuple[str, ...]:
    """Return what the main thread called in C++, the innermost call first: `function (library)`."""
    _, _, main = text.partition(f'"{MAIN}"\n')
    calls = takewhile(lambda line: line and not _frame(line), map(str.strip, main.splitlines()))
    known = (call[:_LONGEST_NATIVE] for call in calls if _NATIVE.fullmatch(call))
    return tuple(islice(known, _MOST_NATIVE))


def _frame(line: str) -> str:
    """Return `file:line function` of `function (file:line)`, "" of any other line."""
    function, _, place = line.removesuffix(")").rpartition(" (")
    file, _, number = place.rpartition(":")
    is_frame = line.endswith(")") and function and file and number.isdecimal()
    return f"{place} {function}" if is_frame else ""
