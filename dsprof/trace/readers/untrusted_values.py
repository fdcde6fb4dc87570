"""Takes what is needed out of data of any shape: what has not the type that it must have is absent.

One list may occur in a pickle a thousand times, so every list is taken up to a limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

_LARGEST = 1 << 63
_LARGEST_PID = 1 << 32
_LONGEST_TEXT = 500
_MOST_FRAMES = 200
_INNER_FILE = re.compile(r"(^|/)(torch|deepspeed)/")
_ZERO3_FILE = re.compile(
    r"deepspeed/runtime/zero/(partition_parameters|partitioned_param_coordinator|stage3)\.py$"
)
_ENDING = re.compile(r"(?:^|[-_])(\d{1,7})$")


def mapping(value: Any) -> dict[Any, Any]:
    """Return a dict as it is; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def items(value: Any, most: int) -> list[Any]:
    """Return the first of a list or tuple; none for anything else."""
    return list(islice(value, most)) if isinstance(value, (list, tuple)) else []


def number(value: Any, default: int = 0) -> int:
    """Return an integer, also one written as text."""
    if isinstance(value, str) and len(value) < 20 and value.removeprefix("-").isdecimal():
        value = int(value)
    fits = isinstance(value, int) and -_LARGEST <= value < _LARGEST
    return int(value) if fits else default


def pid(value: Any) -> int:
    """Return the number of a process, 0 for anything else."""
    return value if isinstance(value, int) and 0 <= value < _LARGEST_PID else 0


def text(value: Any) -> str:
    """Return a string, and no more of it than a report would show."""
    return value[:_LONGEST_TEXT] if isinstance(value, str) else ""


def caller(frames: Any) -> str:
    """Return the innermost frame of the user's own Python code, as `file:line function`."""
    found = ""
    for file, name in _python_frames(frames):
        if not _INNER_FILE.search(file):
            return name
        found = found or name
    return found


def call_stack(frames: Any) -> tuple[str, ...]:
    """Return the Python frames from the outermost on, each as `file:line function`."""
    return tuple(name for _, name in _python_frames(frames))[::-1]


def _python_frames(frames: Any) -> Iterator[tuple[str, str]]:
    """Yield the file and the name of each frame of Python, the innermost first."""
    for frame in map(mapping, items(frames, _MOST_FRAMES)):
        file = text(frame.get("filename")).replace("\\", "/")
        if file.endswith(".py") or "ipython" in file:
            yield file, f"{file}:{number(frame.get('line'))} {text(frame.get('name'))}".strip()


def is_of_zero3(frames: Any) -> bool:
    """Whether ZeRO-3 is among the callers: it all-gathers a parameter, or reduces its gradient."""
    files = (text(mapping(frame).get("filename")) for frame in items(frames, _MOST_FRAMES))
    return any(_ZERO3_FILE.search(file.replace("\\", "/")) for file in files)


def number_at_end(path: Path) -> int:
    """Return the number in which a name ends, -1 if it does not: `_dump_3`."""
    found = _ENDING.search(path.name.split(".")[0])
    return int(found[1]) if found else -1
