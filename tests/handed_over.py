"""What hooks have recorded, as the writer gets it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from dsprof.recording.recorder.hot_state import compiled
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Collective
from dsprof.trace.writing.encode import Encoder

_START_NS = 1


def handed_over(recorder: Recorder, kind: type = object) -> list[Any]:
    """Return the records of a kind, and leave them where they are.

    Both ways to write them must agree.
    """
    noted = list(recorder.outbox.records)
    if compiled is not None:
        assert lines_in_c(noted) == lines_in_python(noted)
        noted = [compiled.made(record) for record in noted]
    return [record for record in noted if isinstance(record, kind)]


def collectives(recorder: Recorder) -> list[Collective]:
    """Return those that are handed over, then those in flight."""
    return handed_over(recorder, Collective) + recorder.in_flight.unfinished()


def lines_in_python(noted: Sequence[Any], rank: int = 0) -> list[bytes]:
    """Return the lines of what hooks noted, by way of records."""
    assert compiled is not None
    encoder = Encoder(rank, _START_NS)
    return [line for one in noted for line in _encoded(encoder, compiled.made(one))]


def lines_in_c(noted: Sequence[Any], rank: int = 0) -> list[bytes]:
    """Return the lines of what hooks noted as C writes them, and Python where C leaves it to it."""
    assert compiled is not None
    encoder = Encoder(rank, _START_NS, lines_in_c=compiled.Lines)
    left, found = deque(noted), list[bytes]()
    while left:
        data, count, *_ = encoder.in_c.take(left, len(left), False)
        lines = data.splitlines()
        assert len(lines) == count
        found += [line.removesuffix(b",") for line in lines]
        if left:
            found += _encoded(encoder, compiled.made(left.popleft()))
    return found


def _encoded(encoder: Encoder, record: Any) -> list[bytes]:
    return [msgspec.json.encode(line) for line in encoder.record(record)]
