"""Snapshots of the allocator's memory, by rank."""

from __future__ import annotations

from dataclasses import dataclass

from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.dumps.memory_snapshot import MemorySnapshot
from dsprof.trace.rank_trace import RankTrace


@dataclass(frozen=True, slots=True)
class Snapshots(Aggregate):
    """The ranks of which a snapshot was given."""

    ranks: dict[int, MemorySnapshot]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Snapshots:
        return cls({} if trace.snapshot is None else {trace.rank: trace.snapshot})
