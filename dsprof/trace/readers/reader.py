"""What a reader is: it knows a kind of file by its content, and turns one into a `RankTrace`."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from dsprof.trace.format import Header
from dsprof.trace.table import RankTrace

START_BYTES = 1 << 16
"""How much of a file `recognises` is shown."""


class Reader(Protocol):
    """Reads one kind of file, of one rank, in bounded memory."""

    name: str  # what the files are called, for messages

    def recognises(self, start: bytes) -> bool:
        """Say whether a file that begins with `start` is of this kind; its name plays no part."""
        ...

    def read_header(self, path: Path) -> Header:
        """Read who wrote the file, as cheaply as can be.

        Raises:
            TraceError: it cannot be read.
        """
        ...

    def read_trace(self, path: Path) -> RankTrace:
        """Read the file.

        Raises:
            TraceError: it cannot be read.
        """
        ...
