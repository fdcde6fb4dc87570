"""The kinds of files that are read; one more is its file and a line here."""

from __future__ import annotations

from pathlib import Path

from dsprof.trace.readers.flight import FlightReader
from dsprof.trace.readers.kineto import KinetoReader
from dsprof.trace.readers.native import NativeReader
from dsprof.trace.readers.reader import START_BYTES, Reader
from dsprof.trace.readers.snapshot import SnapshotReader
from dsprof.trace.source import read_start

READERS: tuple[Reader, ...] = (NativeReader(), KinetoReader(), FlightReader(), SnapshotReader())
"""The first that recognises a file reads it; and where two files tell the same, the first tells."""


def reader_of(path: Path) -> Reader | None:
    """Return the reader of a file by its content; None where no reader knows it.

    Raises:
        TraceError: the file cannot be opened.
    """
    start = read_start(path, START_BYTES)
    return next((reader for reader in READERS if reader.recognises(start)), None)
