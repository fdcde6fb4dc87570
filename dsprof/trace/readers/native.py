"""The trace that dsprof itself writes, among the other kinds of files."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from dsprof.files.inputs import open_input
from dsprof.trace.lines import LINES
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.reader import read_header, read_trace
from dsprof.trace.readers.base import Facts, OneRankReader, Reader
from dsprof.trace.schema import EXIT, Header


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
        """Read the first line."""
        return read_header(path)

    def read_trace(self, path: Path) -> RankTrace:
        """Read the whole file, cut anywhere."""
        return read_trace(path)


_TAIL_BYTES = 1 << 16
_trailer = msgspec.json.Decoder(LINES["trailer"])


def ended_well(path: Path) -> bool:
    """Say whether the process of a trace has ended by itself, and by no exception."""
    try:
        with open_input(path) as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _TAIL_BYTES, 0))
            *_, last, _ = file.read().rstrip().split(b"\n")
        trailer = _trailer.decode(last).args
    except (OSError, ValueError, msgspec.MsgspecError):  # packed, cut, or of a killed process
        return False
    return trailer.reason == EXIT and not trailer.exception


READER: Reader = NativeReader()
