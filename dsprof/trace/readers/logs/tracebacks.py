"""The exceptions that ended ranks, as torch's handler of exceptions and its watchdog write them."""

from __future__ import annotations

import re

from dsprof.files.redaction import redact_text

BEGIN = "Traceback (most recent call last):"
MARKS = (b"]: " + BEGIN.encode(),)

_OF_RANK = re.compile(r"\[rank(\d{1,6})\]: ?")
_OF_WATCHDOG = re.compile(
    # A group's rank is a rank of the run only in the default group.
    r"(?:\[(?:PG (?:ID )?0 [^\]]{0,199})?[Rr]ank (?P<rank>\d{1,6})\] .{0,40})?"
    r"atchdog thread terminated with exception: (?P<what>(?:CUDA|HIP) error: .{1,300})"
)
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,199}(?:: .{1,2000}|(?=:?\s*$))")
_LONGEST_EXCEPTION = 1000
_LONGEST_LINES = 1 << 12
"""One has some 30 lines, and other ranks write theirs in between."""
_MOST_RANKS = 1 << 16
"""More than a file keeps writers: the scan counts those that it leaves out."""


class Tracebacks:
    """Follows the traceback of each rank, whose lines may interleave.

    `raised` holds what ended each rank, type and message: of chained exceptions, the last.
    """

    def __init__(self) -> None:
        self.raised: dict[int, str] = {}
        self._open: set[int] = set()
        self._lines_left = 0

    @property
    def is_open(self) -> bool:
        """Whether the line of an exception is awaited."""
        return bool(self._open) and self._lines_left > 0

    def take(self, line: str) -> None:
        """Take a line of any writer."""
        self._lines_left -= 1
        if (writer := _OF_RANK.search(line)) is None:
            return
        rank, text = int(writer[1]), line[writer.end() :]
        if text.startswith(BEGIN):
            self._open.add(rank)
            self._lines_left = _LONGEST_LINES
        elif rank in self._open and (found := _EXCEPTION.match(text)):
            self._open.remove(rank)
            if rank in self.raised or len(self.raised) < _MOST_RANKS:
                text = found[0]
                if len(text) > _LONGEST_EXCEPTION:  # part of a credential is not known as such
                    text = redact_text(text)[:_LONGEST_EXCEPTION]
                self.raised[rank] = text.rstrip()

    def take_watchdog(self, rank: int, text: str) -> None:
        """Take a line that a launcher marked with `rank`, -1 if with none.

        An error of the device that the watchdog meets ends the process without a traceback.
        """
        if (found := _OF_WATCHDOG.search(text)) is None:
            return
        rank = int(found["rank"] or -1) if rank < 0 else rank
        if rank >= 0 and len(self.raised) < _MOST_RANKS:
            self.raised.setdefault(rank, found["what"].rstrip())
