"""Which events are missing from a profile, by the numbers that torch gave them.

Torch numbers operators without gaps. A window that was cut out of a longer recording begins at any
number and is whole; a sample has gaps all over.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from dsprof.trace.readers.kineto.events import TraceEvent

_GAPS = 8
"""Threads take numbers in blocks of their own, and operators begin before a window."""
_GAP_SHARE = 0.05
"""Of the numbers. Whole files of any kind have below 0.02, files of samples above 0.5."""


class Numbers:
    """The numbers of all operators; where these have none, those of all events."""

    def __init__(self) -> None:
        self._operators = array("q")
        self._events = array("q")

    def add(self, events: Sequence[TraceEvent], operators: Sequence[TraceEvent]) -> None:
        """Take the numbers of a chunk."""
        if found := [n for e in operators if type(n := e.args.external) is int]:
            self._operators.extend(found)
        elif not self._operators:
            indices = (max(event.args.index, event.args.old_index) for event in events)
            self._events.extend(number for number in indices if number >= 0)

    def left_out(self) -> str:
        """Say how many of the events that torch numbered are here; "" where that is all."""
        numbers = np.unique(np.array(self._operators or self._events, np.int64))
        gaps = int(np.count_nonzero(np.diff(numbers) > 1))
        if gaps <= max(_GAPS, _GAP_SHARE * len(numbers)):
            return ""
        return f"{len(numbers):,} of about {int(numbers[-1] - numbers[0]) + 1:,}"
