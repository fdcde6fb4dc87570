"""Ranks without steps in a rolling recording: sums over time of all that they recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dsprof.analysis.aggregates.history import MOST_SPANS
from dsprof.analysis.rank.whole_spans import whole_times
from dsprof.analysis.summary import LARGEST, Aggregate, RankClock, Sums, add_rows
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.rolling.rollups import SPANS_S
from dsprof.trace.schema import OpTotals, RollUp


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


Op = tuple[int, int, int]
"""Calls, bytes and blocked time of an operation."""


@dataclass(frozen=True, slots=True)
class TimeSpans(Aggregate):
    """By length and begin, if no rank has too many spans of a length or has dropped some."""

    ranks: int
    spans: dict[int, dict[int, TimeSpan]]
    ops: dict[str, Op]  # over all of the time

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
        ops: dict[str, Op] = {}
        for one in whole[max(whole)]:
            ops = _with_ops(ops, {name: _op(sums) for name, sums in one.ops.items()})
        return cls(1, spans, ops)

    def merge(self, other: TimeSpans) -> TimeSpans:
        """Join two sets of ranks; a length stays if both have it."""
        if not (self.ranks and other.ranks):
            return self if self.ranks else other
        lengths = self.spans.keys() & other.spans.keys()
        return TimeSpans(
            self.ranks + other.ranks,
            {one: add_rows(self.spans[one], other.spans[one]) for one in lengths},
            _with_ops(self.ops, other.ops),
        )

    @property
    def finest(self) -> tuple[int, Mapping[int, TimeSpan]]:
        """The shortest length that is there, and its spans in order of time."""
        length_s = min(self.spans, default=0)
        found = self.spans.get(length_s, {})
        return length_s, {begin_s: found[begin_s] for begin_s in sorted(found)}


def _op(sums: OpTotals) -> Op:
    return sums.calls, sums.nbytes, sums.blocked_ns


def _with_ops(one: Mapping[str, Op], other: Mapping[str, Op]) -> dict[str, Op]:
    ops = dict(one)
    for name, (calls, nbytes, blocked_ns) in other.items():
        known = ops.get(name, (0, 0, 0))
        ops[name] = known[0] + calls, known[1] + nbytes, known[2] + blocked_ns
    return ops


AGGREGATE = TimeSpans
