"""Stacks as Python's faulthandler writes them, which needs no interpreter lock."""

from __future__ import annotations

import re

from dsprof.trace.dumps.hang_dump import ThreadStack

_THREAD = r"(?P<current>Current t|T)hread 0x[0-9a-fA-F]{1,16} .*:"
_FRAME = r'  File "(?P<file>.*)", line (?P<line>\d{1,9}) in (?P<function>.*)'
_MOST_THREADS, _MOST_FRAMES = 200, 60


def threads_of(text: str) -> list[ThreadStack]:
    """Return the threads: that which holds the interpreter lock first, else the oldest one.

    Which one holds it only some releases of Python say. Each stack has the innermost call first.
    """
    found: list[tuple[bool, list[str]]] = []
    for line in text.splitlines():
        if thread := re.fullmatch(_THREAD, line):
            found.append((len(thread["current"]) > 1, []))
        elif found and (frame := re.fullmatch(_FRAME, line)) and len(found[-1][1]) < _MOST_FRAMES:
            found[-1][1].append(f"{frame['file']}:{frame['line']} {frame['function']}")
    oldest_first = [one for one in reversed(found) if one[1]][:_MOST_THREADS]
    oldest_first.sort(key=lambda one: not one[0])
    return [ThreadStack("", tuple(frames)) for _, frames in oldest_first]
