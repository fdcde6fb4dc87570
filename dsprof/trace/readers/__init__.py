"""The kinds of files that are read; one more is its file and a line here."""

from __future__ import annotations

from pathlib import Path

from dsprof.trace.readers.chakra_graph import ChakraGraphReader
from dsprof.trace.readers.execution_trace import ExecutionTraceReader
from dsprof.trace.readers.flight import FlightReader
from dsprof.trace.readers.inspector import InspectorReader
from dsprof.trace.readers.kineto import KinetoReader
from dsprof.trace.readers.log import LogReader
from dsprof.trace.readers.native import NativeReader
from dsprof.trace.readers.nsys import NsysReader
from dsprof.trace.readers.reader import START_BYTES, Reader
from dsprof.trace.readers.snapshot import SnapshotReader
from dsprof.trace.source import read_start

READERS: tuple[Reader, ...] = (
    NativeReader(),
    KinetoReader(),
    NsysReader(),
    InspectorReader(),
    ExecutionTraceReader(),
    FlightReader(),
    SnapshotReader(),
    ChakraGraphReader(),
    LogReader(),
)
"""The first that recognises a file reads it; and where two files tell the same, the first tells."""

_LONGEST_PREAMBLE_BYTES = 1 << 22


def reader_of(path: Path) -> Reader | None:
    """Return the reader of a file by its content; None where no reader knows it.

    Raises:
        TraceError: the file cannot be opened.
    """
    start = read_start(path, START_BYTES)
    if (found := _recognised(start)) is None and len(start) == START_BYTES and b"\0" not in start:
        # What a job prints may begin with pages of its shells and launchers.
        found = _recognised(read_start(path, _LONGEST_PREAMBLE_BYTES))
    return found


def _recognised(start: bytes) -> Reader | None:
    return next((reader for reader in READERS if reader.recognises(start)), None)
