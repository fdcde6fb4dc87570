"""The native trace: Chrome Trace Event JSON, an array with one line for each record.

The field `cat` says which kind of line it is; Perfetto shows the file as it is. `ts` and `dur` are
microseconds since the start of the trace (three decimals: nanoseconds). `args` is the record, as
`dsprof.trace.schema` declares it; docs/reference/trace-format.md describes the file for others.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import msgspec

from dsprof.files import notes
from dsprof.files.decoding import UNDECODABLE
from dsprof.trace.schema import COMM, KINDS, OPEN, Header, Kind


class Line(msgspec.Struct, gc=False, omit_defaults=True, tag_field="cat"):
    """Fields of every line."""

    args: Any
    name: str = ""
    ph: str = "X"
    pid: int = 0  # the rank
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0


def _line(kind: Kind) -> Any:
    fields = [("args", kind.record)]
    options: Any = {"tag": kind.cat, "gc": False, "omit_defaults": True}
    return msgspec.defstruct(f"{kind.cat}_line", fields, bases=(Line,), module=__name__, **options)


LINES: dict[str, Any] = {kind.cat: _line(kind) for kind in KINDS}
"""The type of each kind of line, by its `cat`."""

COMM_LINE, OPEN_LINE = LINES[COMM], LINES[OPEN]

AnyLine = reduce(or_, LINES.values())
"""Types that a decoder takes."""

_SETTINGS = (LINES["engine"], LINES["environment"])
"""Lines of which no number is a time."""


_header = msgspec.json.Decoder(LINES["header"])
_HEADER_BYTES = 1 << 16


def header_of(book: Path) -> Header | None:
    """Return the header of a trace; None if it cannot be read, or is a link or a pipe."""
    with suppress(OSError, *UNDECODABLE):
        start = notes.read_if(book, _HEADER_BYTES, lambda _: True)
        line = start.lstrip(b"[ \r\n").split(b"\n", 1)[0]
        header: Header = _header.decode(line.rstrip(b",\r ")).args
        return header
    return None


def fits(value: object) -> bool:
    """Say whether all integers in `value`, at any depth, have 64 bits, and differences of times.

    DeepSpeed writes sys.maxsize for what has no limit, and so do hosts.
    """
    limit = 2**63 if isinstance(value, _SETTINGS) else 2**62
    pending: list[Any] = [value]
    for one in pending:  # it grows meanwhile
        kind = type(one)
        if kind is str:  # most are, and a chain of isinstance is slow
            continue
        if kind is int:
            if not -limit <= one < limit:
                return False
        elif isinstance(one, msgspec.Struct):
            pending += msgspec.structs.astuple(one)
        elif kind is dict:
            pending += one.values()
        elif (kind is list or kind is tuple) and not _are_small(one):
            pending += one
    return True


def _are_small(values: Sequence[Any]) -> bool:
    """Say whether these are integers of 32 bits: each rank lists all ranks of its groups."""
    try:
        array("i", values)
    except (TypeError, OverflowError):
        return False
    return True
