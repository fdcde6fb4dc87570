"""A rolling recording from its begin: sums over time, and which steps have details."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from dsprof.analysis.rank.sampling import share_of
from dsprof.analysis.rank.steps import recorded_steps
from dsprof.analysis.rank.whole_spans import whole_spans
from dsprof.analysis.summary import (
    LARGEST,
    SMALLEST,
    Aggregate,
    RankClock,
    Sums,
    add_rows,
    joined_by,
)
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.rolling.rollups import SPANS_S
from dsprof.trace.schema import RollUp

S = TypeVar("S", bound=Sums)

MOST_SPANS = 1000
"""If a trace has more spans of a length, only longer ones are read."""

LONGEST = 1 << 16
"""Spans kept of all ranks together beside these: of the shortest, those with the longest steps."""
_LEAST_LONGEST, _MOST_LONGEST = 4, 16  # of a rank

NAMED = 1 << 18
"""Steps of which all ranks together say that they kept them, beside those that ranks agreed on."""
_LEAST_NAMED, _MOST_NAMED = 16, 512  # of a rank


class Kept(NamedTuple):
    """A step that ranks kept in detail."""

    cause: str
    times: float
    why: str
    ranks: int
    is_captured: bool  # ranks agreed on it
    named: frozenset[int]  # of these ranks; all, unless many steps are unusual


Busy = tuple[tuple[int, int], ...]
"""Time of a step without waits in ns, and the negative rank: of the two busiest."""
_BUSIEST = joined_by(lambda one, other: tuple(sorted(one + other, reverse=True)[:2]))


@dataclass(frozen=True, slots=True)
class Span(Sums):
    """Sums over the ranks of the steps that ended in one span."""

    ranks: int
    steps: int = field(metadata=LARGEST)  # of the rank with most
    rank_steps: int
    total_ns: int
    fastest_ns: int = field(metadata=SMALLEST)
    slowest: tuple[int, int, int] = field(metadata=LARGEST)  # time in ns, negative rank, step
    busiest: Busy = field(metadata=_BUSIEST)
    waited_ns: int
    blocked_ns: int
    stalled_ns: int
    nbytes: int
    rss_bytes: int = field(metadata=LARGEST)
    device_bytes: int = field(metadata=LARGEST)

    @classmethod
    def of(cls, one: RollUp, rank: int) -> Span:
        """Return the span of one rank."""
        slowest = (one.slowest_ns, -rank, one.slowest_step)
        busiest = (((one.total_ns - one.waited_ns) // max(one.steps, 1), -rank),)
        times = (one.total_ns, one.fastest_ns, slowest, busiest)
        waits = (one.waited_ns, one.blocked_ns, one.stalled_ns)
        memory = (one.rss_bytes, one.device_bytes)
        return cls(1, one.steps, one.steps, *times, *waits, one.nbytes, *memory)


class ByLength(Generic[S]):
    """Spans of a rolling recording, by length and begin."""

    __slots__ = ()
    spans: dict[int, dict[int, S]]

    def spans_of_both(self, other: ByLength[S]) -> dict[int, dict[int, S]]:
        """Add up the spans of the lengths that both have."""
        lengths = self.spans.keys() & other.spans.keys()
        return {one: add_rows(self.spans[one], other.spans[one]) for one in lengths}

    @property
    def finest(self) -> tuple[int, Mapping[int, S]]:
        """The shortest length that is there, and its spans in order of time."""
        length_s = min(self.spans, default=0)
        found = self.spans.get(length_s, {})
        return length_s, {begin_s: found[begin_s] for begin_s in sorted(found)}


@dataclass(frozen=True, slots=True)
class History(ByLength[Span], Aggregate):
    """By length and begin, if no rank has too many spans of a length or has dropped some."""

    spans: dict[int, dict[int, Span]]
    longest: dict[int, Span]  # of the shortest length, by begin
    steps: int  # recorded, of the rank with most
    lost: int  # steps in between that were not recorded, of the rank with most
    left_out: int  # recorded steps without details, of the rank with most
    kept: dict[int, Kept]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> History:
        """Take the sums of one rank; of other recordings there are none."""
        spans = {
            length_s: {one.begin_s: Span.of(one, trace.rank) for one in found}
            for length_s, found in whole_spans(trace).items()
            if len(found) <= MOST_SPANS or length_s == SPANS_S[-1]
        }
        steps, lost = _counts(trace)
        short = {
            one.begin_s: Span.of(one, trace.rank)
            for one in trace.rollups.values()
            if one.length_s == SPANS_S[0] and one.steps
        }
        return cls(
            spans,
            _longest(short, share_of(trace, LONGEST, _LEAST_LONGEST, _MOST_LONGEST)),
            steps,
            lost,
            max(steps - len(recorded_steps(trace)), 0),
            _of_rank(trace),
        )

    def merge(self, other: History) -> History:
        """Join two sets of ranks; a length stays if both have it."""
        if not (self.spans and other.spans):
            return self if self.spans else other
        return History(
            self.spans_of_both(other),
            add_rows(self.longest, other.longest),
            max(self.steps, other.steps),
            max(self.lost, other.lost),
            max(self.left_out, other.left_out),
            _kept(self.kept, other.kept),
        )


def _counts(trace: RankTrace) -> tuple[int, int]:
    """Return how many steps the sums of a rank hold, and how many in between they lack."""
    *_, spans = [[], *whole_spans(trace).values()]
    steps = sum(one.steps for one in spans)
    begin = min((one.first_step for one in spans), default=0)
    return steps, max((one.end for one in spans), default=begin) - begin - steps


def _of_rank(trace: RankTrace) -> dict[int, Kept]:
    """Return what a rank kept; where others were asked for a step, it may have kept it anyway."""
    unusual = [one for one in trace.kept.values() if one.why in ("slow", "sample")]
    unusual.sort(key=lambda one: (-one.times, one.step))
    named = share_of(trace, NAMED, _LEAST_NAMED, _MOST_NAMED)
    unnamed = {one.step for one in unusual[named:]}
    rank, no_rank = frozenset({trace.rank}), frozenset[int]()
    return {
        one.step: Kept(
            one.cause,
            one.times,
            one.why,
            1,
            one.why in ("capture", "alarm"),
            no_rank if one.step in unnamed else rank,
        )
        for one in trace.kept.values()
    }


def _longest(spans: Mapping[int, Span], most: int) -> dict[int, Span]:
    """Return the spans with the longest steps: what slows one rank lengthens those of all."""
    order = sorted(spans, key=lambda at: (-spans[at].total_ns // max(spans[at].steps, 1), at))
    return {begin_s: spans[begin_s] for begin_s in order[:most]}


def _kept(one: Mapping[int, Kept], other: Mapping[int, Kept]) -> dict[int, Kept]:
    kept = dict(one)
    known: dict[tuple[int, int], frozenset[int]] = {}  # most steps are kept by the same ranks
    for step, mine in other.items():
        if (theirs := kept.get(step)) is not None:
            cause, times, why = max(theirs[:3], mine[:3])
            ranks, is_captured = theirs.ranks + mine.ranks, theirs.is_captured or mine.is_captured
            both = id(theirs.named), id(mine.named)
            if both not in known:
                known[both] = theirs.named | mine.named
            mine = Kept(cause, times, why, ranks, is_captured, known[both])
        kept[step] = mine
    return kept
