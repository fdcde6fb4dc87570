"""Where in a log the last start of a job begins.

There DeepSpeed's launcher started again, or processes use devices that others had used.
"""

from __future__ import annotations

import re

from dsprof.trace.readers.logs.prefix import Said

_READY = re.compile(r"nranks \d+ .{0,199}busId (?P<bus>[\w:.]{1,32}) .{0,199}Init COMPLETE")
_MOST_PROCESSES = 1 << 16


class Starts:
    """Counts the starts of a job, and knows where the last one begins."""

    def __init__(self) -> None:
        self.count = 1
        self.last_at_bytes = 0
        self._launched: set[str] = set()  # nodes whose launcher has started
        self._began: dict[tuple[str, int], int] = {}  # where the first line of a process is
        self._last: dict[tuple[str, int], int] = {}  # and its last one so far
        self._users: dict[tuple[str, str], tuple[str, int]] = {}  # of each device

    def launched(self, node: str, at_bytes: int) -> None:
        """Take the line with which DeepSpeed's launcher starts a job, and where it begins."""
        if node in self._launched:
            self.count += 1
            self.last_at_bytes = at_bytes
            self._began, self._last, self._users = {}, {}, {}
            self._launched.clear()
        self._launched.add(node)

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
            self.count += 1
            before = {*self._users.values()}
            began_later = (at for one, at in self._began.items() if one not in before and at > left)
            self.last_at_bytes = min(began_later)
            self._users = {device: process}
