"""Writes trace files as the recorder writes them: an array, one event a line, a trailer last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from dsprof.trace.lines import LINES, Line
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.run import find_run, read_run
from dsprof.trace.schema import Header, Trailer
from tests.factories import trace as make


def run_events(head: Header, steps: int = 4) -> list[Line]:
    """A small whole run of one rank: every step has one blocking all_reduce."""
    body: list[Line] = [LINES["group"](name="world", args=make.group(head.world_size))]
    for number in range(steps):
        start = 100.0 * number
        comm: Line = make.sync("all_reduce", start + 10, 5, seq=number, step=number)
        body += [comm, LINES["step"](name="step", args=make.step(number, start, start + 100))]
    trailer = LINES["trailer"](name="trailer", args=Trailer(reason="exit", steps=steps))
    return [LINES["header"](name="header", args=head), *body, trailer]


def encode(events: Sequence[Line]) -> bytes:
    """The bytes of a trace file."""
    return b"[\n" + b",\n".join(map(msgspec.json.encode, events)) + b"\n]\n"


def write_trace(path: Path, head: Header, steps: int = 4) -> Path:
    """Write the trace of one rank."""
    path.write_bytes(encode(run_events(head, steps)))
    return path


def write_run(
    folder: Path, world_size: int = 2, name: str = "trace", **fields: object
) -> list[Path]:
    """Write the traces of a run; `fields` go into every header."""
    folder.mkdir(exist_ok=True)
    return [
        write_trace(folder / f"{name}.rank{rank:05d}.json", make.header(rank, world_size, **fields))
        for rank in range(world_size)
    ]


def read(path: Path) -> RankTrace:
    """Return the trace of a run of which one rank is there."""
    (trace,) = read_run(find_run([path]))
    return trace
