"""The trace that dsprof itself writes, among the other kinds of files."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dsprof.errors import TraceError
from dsprof.files.decoding import UNDECODABLE
from dsprof.trace.lines import LINES
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import read_header, read_trace
from dsprof.trace.readers.base import Facts, OneRankReader, Reader
from dsprof.trace.schema import EXIT, SWITCHED_OFF, Header, Trailer
from dsprof.trace.source import Source


class NativeReader(OneRankReader):
    """Reads one file that a run under dsprof wrote."""

    name = "dsprof trace"
    tells = Facts.TIMELINE
    order = 10

    def recognises(self, start: bytes) -> bool:
        """Say whether the first line is a trace header, of whatever version."""
        line = start[:4096]
        return line.lstrip().startswith(b"[") and b'"cat":"header"' in line.replace(b" ", b"")

    def read_header(self, path: Path) -> Header:
        return read_header(path)

    def read_trace(self, path: Path) -> RankTrace:
        return read_trace(path)


_TAIL_BYTES = 1 << 16
_trailer = msgspec.json.Decoder(LINES["trailer"])


def ended_well(path: Path) -> bool:
    """Say whether the process of a trace has ended by itself, and by no exception."""
    trailer = _trailer_of(path)
    return trailer is not None and trailer.reason == EXIT and not trailer.exception


def was_switched_off(path: Path) -> bool:
    """Say whether a trace ended before its process."""
    trailer = _trailer_of(path)
    return trailer is not None and trailer.reason == SWITCHED_OFF


def _trailer_of(path: Path) -> Trailer | None:
    """Return the last line; None of a trace that is cut, or whose process was killed."""
    try:
        with Source(path) as source:
            *_, last, _ = source.end(_TAIL_BYTES).rstrip().split(b"\n")
        trailer: Trailer = _trailer.decode(last).args
    except (TraceError, ValueError, *UNDECODABLE):
        return None
    return trailer


READER: Reader = NativeReader()
