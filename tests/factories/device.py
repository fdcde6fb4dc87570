"""Ranks as a profiler saw them, through the reader: what their device did. Times are in ms."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.readers.kineto import KinetoReader
from tests.factories import kineto


def rank(events: Sequence[Any], number: int = 0, world_size: int = 2, **fields: Any) -> RankTrace:
    """The trace of one rank of a host."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile"
        kineto.write(
            path, events, number, world_size=world_size, **({"host_name": "node-a"} | fields)
        )
        return KinetoReader().read_trace(path)


def busy(
    number: int = 0, compute: float = 60, comm: float = 20, hidden: float = 0, **fields: Any
) -> RankTrace:
    """A rank with four steps of 100 ms."""
    return rank(kineto.steps(4, compute, comm, hidden), number, **fields)


def sampled(number: int = 0, **fields: Any) -> RankTrace:
    """A rank out of whose file most events were left."""
    left = [kineto.span("cpu_op", "aten::mm", 1, 1, args={"Ev Idx": n}) for n in range(0, 5000, 50)]
    return rank([*kineto.steps(4, 10, 20), *left], number, **fields)
