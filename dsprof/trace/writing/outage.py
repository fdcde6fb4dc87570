"""A disk that refuses data for a while: which steps are lost, and when to try again."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

from dsprof.trace.schema import Record, Step

_MOST_TURNS = 128
_STEP_LINE = re.compile(rb'"cat":"step","args":\{"step":(\d+)')


class Outage:
    """What is lost since the disk refused data."""

    def __init__(
        self, error: OSError, written: int, reached: int, whole_from: int, turns: int
    ) -> None:
        """Step `written` is the last one on disk, and step `reached` the last one that had ended.

        Of steps before `whole_from` a part may be lost. The first wait is of so many `turns`.
        """
        self.why = error.strerror or type(error).__name__
        self.lost = range(written + 1, max(written, reached) + 1)
        self.has_room = False  # again: only the rest of a step that is not whole is dropped
        self.turns = self._left = turns
        self._ended = reached
        self._whole_from = max(whole_from, self.lost.stop)

    def is_due(self) -> bool:
        """Say whether to try again: after 1, 2, 4, ..., 128 turns of the writer; 128 are 51 s."""
        self._left -= 1
        if self._left > 0:
            return False
        self.turns = self._left = min(self.turns * 2, _MOST_TURNS)
        return True

    def lose(self, records: deque[Record], show: Callable[[Record], None]) -> int:
        """Take out all records and show them; return how many."""
        count = 0
        while records:
            record = records.popleft()
            self._whole_from = max(self._whole_from, record.step + 1)
            self._drop(record, show)
            count += 1
        return count

    def skip(self, records: deque[Record], show: Callable[[Record], None]) -> int:
        """Do the same with records before the first step of which nothing is lost."""
        count = 0
        while records:
            record = records.popleft()
            is_outside = record.step < 0 and self._ended >= self._whole_from - 1
            if record.step >= self._whole_from or is_outside:
                records.appendleft(record)
                break
            self._drop(record, show)
            count += 1
        return count

    def lose_lines(self, lines: bytes) -> int:
        """Count the steps of lines that are removed from the file; return the number of lines."""
        if first := _STEP_LINE.search(lines):
            step = int(first[1])
            self.lost = range(min(step, self.lost.start), max(step + 1, self.lost.stop))
        return lines.count(b"\n")

    def _drop(self, record: Record, show: Callable[[Record], None]) -> None:
        show(record)
        if isinstance(record, Step):
            self._ended = max(self._ended, record.step)
            self.lost = range(self.lost.start, max(self.lost.stop, record.step + 1))

    def text(self) -> str:
        """Say which steps are missing, and why."""
        if not self.lost:
            return f"the disk refused records: {self.why}"
        first, last = self.lost.start, self.lost.stop - 1
        steps = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
        return f"the disk refused records of {steps}: {self.why}"
