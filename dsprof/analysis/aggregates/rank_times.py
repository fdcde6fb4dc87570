"""Steps of each rank over the whole of a rolling recording, at a bounded resolution."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from dsprof.analysis.per_rank import PerRank
from dsprof.analysis.rank.whole_spans import whole_spans
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.columns import IntArray
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.rolling.rollups import SPANS_S
from dsprof.trace.schema import RollUp
from dsprof.trace.sharing import shared

MOST_SPANS = 120
"""Most spans of a rank."""
LENGTHS_S = (*SPANS_S, 14_400, 86_400, 604_800)
"""Each is a multiple of the one before; beyond a week the spans are not bounded."""


@dataclass(frozen=True, slots=True)
class RankSpans:
    """Columns, one row per span of a rank, in order of time; sums over its steps."""

    length_s: int
    begin_s: IntArray
    first_step: IntArray
    last_step: IntArray  # steps in between may be lost
    steps: IntArray
    total_ns: IntArray
    waited_ns: IntArray

    def coarser(self, length_s: int) -> RankSpans:
        """Return spans of this length, which is a multiple of theirs."""
        if length_s == self.length_s:
            return self
        begin_s = self.begin_s // length_s * length_s
        starts = np.flatnonzero(np.diff(begin_s, prepend=begin_s[:1] - 1))
        columns = (self.steps, self.total_ns, self.waited_ns)
        sums = (np.add.reduceat(column, starts) for column in columns)
        ends = self.last_step[np.append(starts[1:], len(begin_s)) - 1]
        return RankSpans(length_s, begin_s[starts], self.first_step[starts], ends, *sums)


@dataclass(frozen=True, slots=True)
class RankTimes(Aggregate):
    """The ranks that wrote sums over time."""

    ranks: PerRank[RankSpans]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> RankTimes:
        """Add up the spans of one rank until they are few enough."""
        for length_s, found in whole_spans(trace).items():
            if len(found) <= MOST_SPANS or length_s == SPANS_S[-1]:
                return cls(PerRank({trace.rank: _bounded(_columns(length_s, found))}))
        return cls(PerRank())

    def aligned(self) -> Mapping[int, RankSpans]:
        """Return the ranks with spans of one length."""
        lengths_s = {spans.length_s for spans in self.ranks.values()}
        if len(lengths_s) < 2:
            return self.ranks
        length_s = max(lengths_s)
        return {rank: spans.coarser(length_s) for rank, spans in self.ranks.items()}


def _bounded(spans: RankSpans) -> RankSpans:
    for length_s in LENGTHS_S:
        if len(spans.begin_s) > MOST_SPANS and length_s > spans.length_s:
            spans = spans.coarser(length_s)
    return spans


def _columns(length_s: int, found: Iterable[RollUp]) -> RankSpans:
    rows = sorted(
        (one.begin_s, one.first_step, one.end - 1, one.steps, one.total_ns, one.waited_ns)
        for one in found
    )
    begin_s, first_step, last_step, steps, *times = np.array(rows, np.int64).T.copy()
    alike = (shared(column) for column in (begin_s, first_step, last_step, steps))
    return RankSpans(length_s, *alike, *times)
