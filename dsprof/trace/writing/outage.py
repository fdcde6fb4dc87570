"""A disk that refuses data for a while: which steps are lost, and when to try again."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

from dsprof.trace.schema import Record, Step

_MOST_TURNS = 128
_STEP_LINE = re.compile(rb'"cat":"step","args":\{"step":(\d+)')


class Outage:
    """Step `written` is the last one on disk, and step `reached` the last one that had ended."""

    def __init__(self, error: OSError, written: int, reached: int) -> None:
        self.why = error.strerror or type(error).__name__
        self.lost = range(written + 1, reached + 1)
        self._whole_from = self.lost.stop
        self._turns = self._left = 1

    def is_due(self) -> bool:
        """Say whether to try again: after 1, 2, 4, ..., 128 turns of the writer; 128 are 51 s."""
        self._left -= 1
        if self._left:
            return False
        self._turns = self._left = min(self._turns * 2, _MOST_TURNS)
        return True

    def try_soon(self) -> None:
        """Try again in the next turn."""
        self._turns = self._left = 1

    def lose(self, records: deque[Record], show: Callable[[Record], None]) -> int:
        """Take out all records and show them; return how many."""
        count = 0
        while records:
            record = records.popleft()
            show(record)
            self._whole_from = max(self._whole_from, record.step + 1)
            self._count(record)
            count += 1
        return count

    def skip(self, records: deque[Record], show: Callable[[Record], None]) -> int:
        """Do the same with records before the first step of which nothing is lost."""
        count = 0
        while records:
            record = records.popleft()
            if record.step >= self._whole_from or record.step < 0:
                records.appendleft(record)
                break
            show(record)
            self._count(record)
            count += 1
        return count

    def lose_lines(self, lines: bytes) -> int:
        """Count the steps of lines that are removed from the file; return the number of lines."""
        if first := _STEP_LINE.search(lines):
            step = int(first[1])
            self.lost = range(min(step, self.lost.start), max(step + 1, self.lost.stop))
        return lines.count(b"\n")

    def _count(self, record: Record) -> None:
        if isinstance(record, Step):
            self.lost = range(self.lost.start, max(self.lost.stop, record.step + 1))

    def text(self) -> str:
        """Say which steps are missing, and why."""
        if not self.lost:
            return f"the disk refused records: {self.why}"
        first, last = self.lost.start, self.lost.stop - 1
        steps = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
        return f"the disk refused records of {steps}: {self.why}"
