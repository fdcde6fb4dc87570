"""Ranks without steps in a rolling recording: sums over time of all that they recorded."""

from __future__ import annotations

from dataclasses import dataclass, field

from dsprof.analysis.aggregates.history import MOST_SPANS, ByLength
from dsprof.analysis.rank.whole_spans import whole_times
from dsprof.analysis.summary import LARGEST, Aggregate, RankClock, Sums, add_rows, summed
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.rolling.rollups import SPANS_S
from dsprof.trace.schema import RollUp


@dataclass(frozen=True, slots=True)
class TimeSpan(Sums):
    """Sums over the ranks of what they recorded in one span; `recorded_ns` is its time."""

    ranks: int
    recorded_ns: int
    waited_ns: int
    calls: int
    nbytes: int
    rss_bytes: int = field(metadata=LARGEST)

    @classmethod
    def of(cls, one: RollUp) -> TimeSpan:
        """Return the span of one rank."""
        return cls(1, one.total_ns, one.waited_ns, one.calls, one.nbytes, one.rss_bytes)


@dataclass(frozen=True, slots=True)
class OpSums(Sums):
    """An operation, summed over time and ranks."""

    calls: int
    nbytes: int
    blocked_ns: int


@dataclass(frozen=True, slots=True)
class TimeSpans(ByLength[TimeSpan], Aggregate):
    """By length and begin, if no rank has too many spans of a length or has dropped some."""

    ranks: int
    spans: dict[int, dict[int, TimeSpan]]
    ops: dict[str, OpSums]  # over all of the time

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> TimeSpans:
        """Take the sums of one rank; none of one that has steps."""
        whole = whole_times(trace)
        if not whole:
            return cls(0, {}, {})
        spans = {
            length_s: {one.begin_s: TimeSpan.of(one) for one in found}
            for length_s, found in whole.items()
            if len(found) <= MOST_SPANS or length_s == SPANS_S[-1]
        }
        ops = (
            (name, OpSums(sums.calls, sums.nbytes, sums.blocked_ns))
            for one in whole[max(whole)]
            for name, sums in one.ops.items()
        )
        return cls(1, spans, summed(ops))

    def merge(self, other: TimeSpans) -> TimeSpans:
        """Join two sets of ranks; a length stays if both have it."""
        if not (self.ranks and other.ranks):
            return self if self.ranks else other
        return TimeSpans(
            self.ranks + other.ranks, self.spans_of_both(other), add_rows(self.ops, other.ops)
        )
