"""Properties of all events of one name, found once: a profile has millions of events."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from dsprof.trace.device_activity import COMMUNICATION, COMPUTE, COPY
from dsprof.trace.rank_trace import Vocabulary
from dsprof.trace.readers.call_rows import UNNAMED
from dsprof.trace.readers.host_calls import kind_of
from dsprof.trace.readers.kernels import is_usual, library_of, operation_of
from dsprof.trace.readers.kineto.events import (
    CPU_COLLECTIVES,
    DEVICE_CATEGORIES,
    KERNEL,
    STEP_PREFIX,
)
from dsprof.trace.readers.kineto.host import ISSUED

UNUSED, STEP, CALL, SPAN, HOST_CALL = range(5)
"""Kinds of events of the host.

`CALL` is torch's record of a collective, `SPAN` one of a CPU backend; `HOST_CALL` and above are
calls that may keep a device idle, by their kind.
"""

_MOST_NAMES = 1 << 16


@lru_cache(_MOST_NAMES)
def use_of(name: str) -> int:
    """Return the kind of the host's events of a name."""
    if name.startswith(STEP_PREFIX):
        return STEP
    if name.startswith(CPU_COLLECTIVES):
        return SPAN
    if name == ISSUED:
        return CALL
    return HOST_CALL + kind if (kind := kind_of(name)) else UNUSED


class DeviceKind(NamedTuple):
    """Properties of all kernels or copies of one name; `name` and `library` are words."""

    name: int
    library: int
    kind: int
    is_usual: bool


class DeviceKinds(dict[tuple[str, str, bool], int]):
    """Numbers what is seen by name, category and whether a collective is named; fills itself.

    `rows` describes by number; `operations` has the collective that the name tells, of those that
    communicate.
    """

    def __init__(self, words: Vocabulary) -> None:
        super().__init__()
        self.rows: list[DeviceKind] = []
        self.operations: dict[int, str] = {}
        self._words = words

    def __missing__(self, key: tuple[str, str, bool]) -> int:
        number = self[key] = len(self.rows)
        self.rows.append(kind := self._describe(*key))
        if kind.kind == COMMUNICATION:
            self.operations[number] = operation_of(key[0]) or UNNAMED
        return number

    def _describe(self, name: str, category: str, is_named: bool) -> DeviceKind:
        if DEVICE_CATEGORIES[category] != KERNEL:
            return DeviceKind(self._words[name], self._words[""], COPY, False)
        library = library_of(name) or ("named by the profiler" if is_named else "")
        kind = COMMUNICATION if library else COMPUTE
        usual = kind == COMMUNICATION and is_usual(name)
        return DeviceKind(self._words[name], self._words[library], kind, usual)
