"""Where in a log the last start of a job begins.

There DeepSpeed's launcher started again, processes use devices that others had used, or the log
goes on although agents of torchrun reported failures: an agent that gives up ends with a traceback
and a list, one that starts processes again says so only with LOGLEVEL=INFO.
"""

from __future__ import annotations

import re

from dsprof.trace.readers.logs.prefix import Said

_READY = re.compile(r"nranks \d+ .{0,199}busId (?P<bus>[\w:.]{1,32}) .{0,199}Init COMPLETE")
_MOST_PROCESSES = 1 << 16
_NEAR_BYTES = 1 << 12
"""Failures of one start are that close to each other, and to the end of a log without the list."""
_NOTES_BYTES = 1 << 9
"""What a shell says after a failure is no longer."""
RESTARTS = "; will restart worker group"


class Starts:
    """Counts the starts of a job, and knows where the last one begins."""

    def __init__(self) -> None:
        self.count = 1
        self.last_at_bytes = 0
        self._failures = 0  # starts that agents reported as failed since the last one was counted
        self._failed_at = -1  # behind the last such report
        self._has_given_up = False
        self._until_bytes = 0  # a log that goes on beyond is of processes that were started again
        self._launched: set[str] = set()  # nodes whose launcher has started
        self._began: dict[tuple[str, int], int] = {}  # where the first line of a process is
        self._last: dict[tuple[str, int], int] = {}  # and its last one so far
        self._users: dict[tuple[str, str], tuple[str, int]] = {}  # of each device

    def launched(self, node: str, at_bytes: int) -> None:
        """Take the line with which DeepSpeed's launcher starts a job, and where it begins."""
        if node in self._launched:
            self._count(1, at_bytes)
            self._began, self._last, self._users = {}, {}, {}
            self._launched.clear()
        self._launched.add(node)

    def failed(self, end_bytes: int) -> None:
        """Take where the line ends in which an agent of torchrun reports a failure."""
        self._failures += self._failed_at < 0 or end_bytes - self._failed_at > _NEAR_BYTES
        self._failed_at = end_bytes
        self._until_bytes = end_bytes + _NOTES_BYTES

    def restarts(self) -> None:
        """Take a line in which an agent of torchrun says that it starts processes again."""
        self._until_bytes = 0

    def raised(self) -> None:
        """Take the begin of a traceback: after a failure, it may be that of an agent."""
        if self._until_bytes:
            self._until_bytes = self._failed_at + _NEAR_BYTES

    def gave_up(self) -> None:
        """Take a line of the list with which an agent ends, or what another launcher says of it."""
        self._has_given_up = True

    def end(self, at_bytes: int) -> None:
        """Take where the log ends."""
        has_failed = self._failed_at >= 0
        if has_failed and not self._has_given_up and at_bytes > self._until_bytes:
            self._count(self._failures, self._failed_at)

    def _count(self, starts: int, at_bytes: int) -> None:
        self.count += starts
        self.last_at_bytes = at_bytes
        self._failures, self._failed_at = 0, -1

    def take(self, said: Said, at_bytes: int) -> None:
        """Take a line of NCCL and where it begins."""
        process = said.host, said.pid
        if not said.pid or (process not in self._began and len(self._began) >= _MOST_PROCESSES):
            return
        began = self._began.setdefault(process, at_bytes)
        self._last[process] = at_bytes
        if not (ready := _READY.search(said.message)):
            return
        device = said.host, ready["bus"]
        user = self._users.setdefault(device, process)
        if user != process and (left := self._last[user]) < began:
            before = {*self._users.values()}
            began_later = (at for one, at in self._began.items() if one not in before and at > left)
            self._count(1, min(began_later))
            self._users = {device: process}
