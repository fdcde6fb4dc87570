"""Which events are missing from a profile, by the numbers that torch gave them.

Torch numbers operators without gaps. A window that was cut out of a longer recording begins at any
number and is whole; a sample has gaps all over.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dsprof.trace.readers.kineto_events import OPERATORS, TraceEvent

_GAPS = 8
"""Threads take numbers in blocks of their own, and operators begin before a window."""
_GAP_SHARE = 0.05
"""Of the numbers. Whole files of any kind have below 0.02, files of samples above 0.5."""


class Numbers:
    """The numbers of all operators; where these have none, those of all events."""

    def __init__(self) -> None:
        self._operators: list[npt.NDArray[np.int64]] = []
        self._events: list[npt.NDArray[np.int64]] = []

    def add(self, events: Sequence[TraceEvent]) -> None:
        """Take the numbers of a chunk."""
        numbers = [e.args.external for e in events if e.cat in OPERATORS]
        if found := [number for number in numbers if type(number) is int]:
            self._operators.append(np.array(found, np.int64))
        elif not self._operators:
            indices = [n for e in events if (n := max(e.args.index, e.args.old_index)) >= 0]
            self._events.append(np.array(indices, np.int64))

    def left_out(self) -> str:
        """Say how many of the events that torch numbered are here; "" where that is all."""
        parts = self._operators or self._events
        numbers = np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)
        gaps = int(np.count_nonzero(np.diff(numbers) > 1))
        if gaps <= max(_GAPS, _GAP_SHARE * len(numbers)):
            return ""
        return f"{len(numbers):,} of about {int(numbers[-1] - numbers[0]) + 1:,}"
