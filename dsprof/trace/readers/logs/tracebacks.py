"""The exceptions that ended ranks, as torch's handler of exceptions and its watchdog write them."""

from __future__ import annotations

import re

from dsprof.files.redaction import redact_text
from dsprof.trace.lost_peers import lost

BEGIN = "Traceback (most recent call last):"
MISMATCH = re.compile(r"Detected mismatch between collectives on ranks.{1,2000}")
"""A message of TORCH_DISTRIBUTED_DEBUG=DETAIL; programs that catch it log no traceback."""
_CHAINED = ("During handling of the above exc", "The above exception was the direct cause of")
_IGNORED = "Exception ignored in"
"""Python writes a traceback after it, too, as of `__del__`: it ends nothing."""
MARKS = (
    *(BEGIN.encode(), _IGNORED.encode(), b"Detected mismatch between collectives on ranks"),
    *(begin.encode() for begin in _CHAINED),
)

_OF_RANK = re.compile(r"\[rank(\d{1,6})\]: ?")
_OF_WATCHDOG = re.compile(
    # A group's rank is a rank of the run only in the default group.
    r"(?:\[(?:PG (?:ID )?0 [^\]]{0,199})?[Rr]ank (?P<rank>\d{1,6})\] .{0,40})?"
    r"atchdog thread terminated with exception: (?P<what>(?:CUDA|HIP) error: .{1,300})"
)
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,199}(?:: .{1,2000}|(?=:?\s*$))")
_OF_NOBODY = re.compile(
    # Those that launchers raise only say that a process failed.
    r"(?!.*(?:ChildFailed|CalledProcess)Error|.*SignalException)"
    r"[A-Za-z_][\w.]{0,199}(?:Error|Exception|Interrupt|Timeout)(?:: .{1,2000}|(?=:?\s*$))"
)
_NOBODY = -1
_FOLLOWS = re.compile(
    r"KeyboardInterrupt|.*(?:(?:Dist|Actor|Worker)\w{1,40}Error|\b(?:aborted|terminated|killed)\b)"
)
"""Exceptions of a rank that another one ended, beside those that `lost` knows."""
_BURST_BYTES = 1 << 16
"""Ranks that fail together write their tracebacks within so much of a log."""
_GOES_ON_BYTES = 1 << 10
"""If so much lies between two tracebacks, the program went on after the first, which it caught."""
_LONGEST_EXCEPTION = 1000
_LONGEST_LINES = 1 << 12
"""One has some 30 lines, and other ranks write theirs in between."""
_MOST_RANKS = 1 << 16
"""More than a file keeps writers: the scan counts those that it leaves out."""


class Tracebacks:
    """Follows the traceback of each rank, whose lines may interleave.

    `raised` holds what ended each rank, type and message: of chained exceptions, the last.
    `first` is the first of the last ones that no line gives a rank and that were not caught, ""
    if there is none; of chained exceptions, again the last.
    """

    def __init__(self) -> None:
        self.raised: dict[int, str] = {}
        self.first = ""
        self._first_until = 0
        self._begun_at = self._ended_at = 0  # the last traceback without a rank
        self._is_first_latest = self._is_ignored = False
        self._before = ""  # what nodes or pods put before the lines of the last without a rank
        self._open: set[int] = set()
        self._lines_left = 0

    @property
    def is_open(self) -> bool:
        """Whether the line of an exception is awaited."""
        return bool(self._open) and self._lines_left > 0

    def take(self, line: str, text: str, at_bytes: int) -> None:
        """Take a line of any writer, its text without what launchers put before it, its place."""
        self._lines_left -= 1
        rank, form, was_ignored = _NOBODY, _OF_NOBODY, self._is_ignored
        self._is_ignored = text.startswith(_IGNORED)
        if writer := _OF_RANK.search(line):
            rank, text, form = int(writer[1]), line[writer.end() :], _EXCEPTION
        else:
            before, begin, _ = text.partition(BEGIN)
            self._before = before if begin else self._before
            text = text.removeprefix(self._before)
        if text.startswith(BEGIN):
            if not was_ignored:
                self._open.add(rank)
            self._begun_at = at_bytes if rank == _NOBODY else self._begun_at
            self._lines_left = _LONGEST_LINES
        elif rank == _NOBODY and self._is_first_latest and text.startswith(_CHAINED):
            self.first = ""
        elif rank in self._open and (found := form.match(text)):
            self._open.remove(rank)
            if rank == _NOBODY:
                went_on = self._begun_at - self._ended_at > _GOES_ON_BYTES
                self._is_first_latest = (
                    at_bytes > self._first_until
                    or not self.first
                    or (went_on and not (lost(found[0]) or _FOLLOWS.match(found[0])))
                )
                if self._is_first_latest:
                    self.first = _cut(found[0])
                self._first_until = at_bytes + _BURST_BYTES
                self._ended_at = at_bytes
            elif rank in self.raised or len(self.raised) < _MOST_RANKS:
                self.raised[rank] = _cut(found[0])

    def take_alone(self, rank: int, text: str) -> None:
        """Take a line that a launcher marked with `rank`, -1 if with none.

        An error of the device that the watchdog meets ends the process without a traceback.
        """
        if found := _OF_WATCHDOG.search(text):
            rank, what = int(found["rank"] or -1) if rank < 0 else rank, found["what"]
        elif found := MISMATCH.search(text):
            what = f"RuntimeError: {found[0]}"
        else:
            return
        if rank >= 0 and len(self.raised) < _MOST_RANKS:
            self.raised.setdefault(rank, _cut(what))


def _cut(text: str) -> str:
    if len(text) > _LONGEST_EXCEPTION:  # part of a credential is not known as such
        text = redact_text(text)[:_LONGEST_EXCEPTION]
    return text.rstrip()
