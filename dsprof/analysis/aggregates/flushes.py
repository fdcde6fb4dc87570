"""Bucket flushes of measured steps, grouped by what they are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dsprof.analysis.rank.intervals import blocked
from dsprof.analysis.rank.steps import detailed_steps
from dsprof.analysis.summary import Aggregate, RankClock, Sums, summed
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Flush


class FlushKind(NamedTuple):
    """Flushes of one row have this in common."""

    stage: int
    cause: str
    dtype: str
    elements: int
    capacity: int
    nbytes: int
    parameters: int
    slot: int
    library: str  # "" for ZeRO
    module: str
    bucket: int  # number of a DDP bucket


@dataclass(frozen=True, slots=True)
class FlushSums(Sums):
    """Sums over ranks and measured steps."""

    flushes: int
    rank_steps: int  # measured steps, summed over the ranks that had such a flush
    wire_ops: Counter[str]
    duration_ns: int
    exposed_ns: int


@dataclass(frozen=True, slots=True)
class Flushes(Aggregate):
    """Sums by kind."""

    rows: dict[FlushKind, FlushSums]
    rank_steps: int  # measured steps, summed over all ranks: kinds differ between ranks

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Flushes:
        """Group the flushes of one rank and the wire operations that they issued."""
        steps = detailed_steps(trace)
        wanted = set(steps.tolist())
        flushes = [flush for flush in trace.flushes if flush.step in wanted]
        issued, exposed = _issued(trace, flushes)
        rows = summed(
            (_kind(flush), FlushSums(1, 0, ops, flush.end_ns - flush.start_ns, int(held_ns)))
            for flush, ops, held_ns in zip(flushes, issued, exposed, strict=True)
        )
        rows = {kind: replace(row, rank_steps=len(steps)) for kind, row in rows.items()}
        return cls(rows, len(steps))


def _kind(flush: Flush) -> FlushKind:
    return FlushKind(*(getattr(flush, name) for name in FlushKind._fields))


def _issued(
    trace: RankTrace, flushes: list[Flush]
) -> tuple[list[Counter[str]], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Return the wire operations of each flush, and the time in which they held the caller."""
    rows = trace.collectives
    place = {flush.id: index for index, flush in enumerate(flushes)}
    issued: list[Counter[str]] = [Counter() for _ in flushes]
    exposed = np.zeros(len(flushes))
    start, end = blocked(rows)
    for i in np.flatnonzero(rows.flush > 0):
        index = place.get(int(rows.flush[i]))
        if index is not None:
            issued[index][rows.words[rows.op[i]]] += 1
            exposed[index] += end[i] - start[i]
    return issued, exposed
