"""Knows graphs in Chakra's protobuf (`.et`), to say what to give instead.

Such a graph is made for simulators. The size of a collective is that of the total array or of one
rank's share, as whoever made it chose, and its times are measured, modelled or absent: no figure
of it could be trusted. What it was made from has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from dsprof.errors import TraceError
from dsprof.trace.format import Header
from dsprof.trace.readers.reader import Facts
from dsprof.trace.table import RankTrace

_VERSION, _NODE_ID, _NODE_NAME = 0x0A, 0x08, 0x12  # the keys of fields that come first
_VERSION_TEXT = re.compile(rb"\d+(\.\d+){1,3}[\w.+-]*")
_LONGEST_LENGTH = 3  # bytes of a varint: messages at the start are below 2 MB


class ChakraGraphReader:
    """Refuses one file, and says why."""

    name = "Chakra graph"
    tells = Facts.TIMELINE

    def recognises(self, start: bytes) -> bool:
        """Say whether a file begins with Chakra's metadata, a version, and then a node."""
        size, place = _length(start, 0)
        if size == 0 or start[place : place + 1] != bytes([_VERSION]):
            return False
        length, text = _length(start, place + 1)
        if not _VERSION_TEXT.fullmatch(start[text : text + length]) or text + length > place + size:
            return False
        _, node = _length(start, place + size)
        return start[node : node + 1] in (bytes([_NODE_ID]), bytes([_NODE_NAME]))

    def read_headers(self, path: Path) -> Sequence[Header]:
        """Refuse the file.

        Raises:
            TraceError: always.
        """
        raise TraceError(
            f"{path}: a Chakra graph for simulators, which is not read; give the files that it was "
            "made from: the JSON of torch's ExecutionTraceObserver and the trace of torch.profiler"
        )

    def read_traces(self, path: Path) -> Iterable[RankTrace]:
        """Refuse the file.

        Raises:
            TraceError: always.
        """
        self.read_headers(path)
        return ()


def _length(data: bytes, place: int) -> tuple[int, int]:
    """Read a varint; return it and where it ends, 0 where there is none."""
    value = 0
    for i, byte in enumerate(data[place : place + _LONGEST_LENGTH]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, place + i + 1
    return 0, place
