"""Which calls of a stack to show: those of the user, and where it waits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import filterfalse, groupby
from pathlib import PurePath

from dsprof.findings.wording import plural

_OURS = re.compile(r"[/\\]dsprof[/\\]hooks[/\\]")
_PACKAGES = r"(?:site|dist)-packages[/\\]"
_LIBRARY = re.compile(rf"[/\\]{_PACKAGES}(\w+)|[/\\](python)3\.\d+[/\\](?!{_PACKAGES})")
_INNERMOST = 2


def shown_frames(stack: Sequence[str], at_most: int) -> list[str]:
    """Return lines for a stack: calls within libraries are counted, but for the innermost."""
    lines: list[str] = []
    for name, run in groupby(without_hooks(stack), library):
        inside = [*run]
        kept = len(inside) if not name else 0 if lines else _INNERMOST
        lines += inside[:kept]
        if left := len(inside[kept:]):
            lines.append(f"({plural(left, 'call')} in {name})")
    left = len(lines) - at_most
    return [*lines[:at_most], *([f"and {plural(left, 'more frame')}"] if left > 0 else [])]


def shortened(frame: str) -> str:
    """Return a call with the last parts of its path: "layers/moe.py:40 forward"."""
    file, colon, rest = frame.rpartition(":")
    return f"{'/'.join(PurePath(file).parts[-2:])}{colon}{rest}"


def without_hooks(stack: Sequence[str]) -> list[str]:
    """Return the calls that are not dsprof's own, on the way to what they record."""
    return [*filterfalse(_OURS.search, stack)]


def to_the_innermost(stack: Sequence[str]) -> tuple[str, ...]:
    """Return calls from the outermost on, without those of libraries but the innermost call."""
    return (*(call for call in stack[:-1] if not library(call)), *stack[-1:])


def frame_of_user(stack: Sequence[str]) -> str:
    """Return the innermost call that is in no library; the innermost one if all are."""
    calls = without_hooks(stack)
    return next((call for call in calls if not library(call)), stack[0])


def library(frame: str) -> str:
    """Return the library that a call is in; "" for the program itself."""
    found = _LIBRARY.search(frame)
    return (found[1] or found[2]) if found else ""
