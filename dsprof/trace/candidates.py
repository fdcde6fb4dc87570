"""Files that may be of a run, and those that were skipped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dsprof.trace.readers import place_of
from dsprof.trace.readers.base import Reader
from dsprof.trace.schema import Header

Process = tuple[str, int, int]
"""Its host, number and PID namespace: processes of two containers may have one number."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """A file that was skipped."""

    path: Path
    reason: str
    is_unread: bool = False  # it may be of the run; others are copies, or of another run


@dataclass(frozen=True, slots=True)
class TraceFile:
    """The part of one file that is of one rank."""

    path: Path
    header: Header
    reader: Reader

    @property
    def start_ns(self) -> int:
        """When its recording began."""
        return self.header.started_epoch_ns

    @property
    def process(self) -> Process:
        """The process that wrote it."""
        return self.header.host, self.header.pid, self.header.pid_namespace

    @property
    def place(self) -> int:
        """How much it tells beside others of its rank: less is more."""
        return place_of(self.reader)
