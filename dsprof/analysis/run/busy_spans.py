"""Spans of a rolling recording in which one rank works longer, and all others wait for it.

Where no waits were measured, nothing tells the rank: spans with longer steps are returned without.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from statistics import median
from typing import NamedTuple

from dsprof.analysis.aggregates.history import History, Span
from dsprof.trace.rolling.rollups import SPANS_S

_LEAST_SHARE = 0.05
"""The rank must work longer than the mean of the others by at least this share of a step."""
_NEXT_SHARE = 0.5
"""The next rank may work longer than the others by at most this share of that."""
_LONGER_SHARE = 0.05
"""Steps of the span must be longer than usual by this share of a usual step; else no rank waits."""
_CAUSED_SHARE = 0.5
"""The rank must account for this share of the longer step; below it all ranks are slower."""
_WAITED_SHARE = 1 / 3
"""The others must wait for this share of the longer step; the rank may wait less than usual."""
_WARM_UP = 10
"""Earlier steps may be long on all ranks: they compile and allocate."""
_OCCASIONAL = 0.2
"""A rank that stands out in more of the recorded time is judged by its newest steps instead."""


class BusySpan(NamedTuple):
    """A span in which one rank stands out; times are means per step."""

    begin_s: int
    length_s: int
    rank: int | None  # None: no waits were measured
    more_ns: int  # that it works longer than the others; 0 where that is not known
    step_ns: int
    usual_ns: int  # a step of the run
    steps: int
    step: int  # the slowest of the span
    late_steps: int  # at least: so many like the slowest would lengthen the span as much

    @property
    def lost_ns(self) -> int:
        """How much longer all its steps take."""
        return (self.step_ns - self.usual_ns) * self.steps


class _Usual(NamedTuple):
    """Medians over the spans; times are means per step."""

    step_ns: int
    waited_ns: int
    more_ns: Mapping[int, float]  # that the rank works longer which works longest in most spans

    @classmethod
    def of(cls, spans: Mapping[int, Span]) -> _Usual:
        more_ns = defaultdict(list)
        for span in spans.values():
            rank, rank_more_ns, _ = busiest(span)
            more_ns[rank].append(rank_more_ns)
        return cls(
            int(median(map(mean_step_ns, spans.values()))),
            int(median(map(mean_waited_ns, spans.values()))),
            {rank: median(one) for rank, one in more_ns.items() if len(one) * 2 > len(spans)},
        )


def busy_spans(history: History) -> list[BusySpan]:
    """Return the spans of the rank that stands out most often, in order of time."""
    length_s, spans = history.finest
    if not spans:
        return []
    is_measured = any(span.waited_ns for span in spans.values())
    find = partial(_found, usual=_Usual.of(spans), is_measured=is_measured)
    found = find(spans, length_s)
    if len(found) > _OCCASIONAL * len(spans):
        return []
    if length_s != SPANS_S[0]:
        begins = {one.begin_s for one in found}
        short = find(history.longest, SPANS_S[0])
        found += [one for one in short if one.begin_s // length_s * length_s not in begins]
    (rank, _), *_ = Counter(one.rank for one in found).most_common(1) or [(None, 0)]
    return sorted(one for one in found if one.rank == rank)


def _found(
    spans: Mapping[int, Span], length_s: int, *, usual: _Usual, is_measured: bool
) -> list[BusySpan]:
    found = []
    for begin_s, span in spans.items():
        slowest_ns, _, step = span.slowest
        step_ns = mean_step_ns(span)
        longer_ns = step_ns - usual.step_ns
        if span.ranks < 2 or longer_ns <= _LONGER_SHARE * usual.step_ns:
            continue
        rank, more_ns = _cause(span, usual) if is_measured else (None, 0)
        if rank is not None or (not is_measured and step >= _WARM_UP):
            late_steps = max(round(longer_ns * span.steps / (slowest_ns - usual.step_ns)), 1)
            times = more_ns, step_ns, usual.step_ns
            found.append(BusySpan(begin_s, length_s, rank, *times, span.steps, step, late_steps))
    return found


def _cause(span: Span, usual: _Usual) -> tuple[int | None, int]:
    """Return the only rank that makes steps longer, and how much longer it works; None without."""
    rank, more_ns, second_ns = busiest(span)
    longer_ns = mean_step_ns(span) - usual.step_ns
    waited_ns = (mean_waited_ns(span) - usual.waited_ns) * span.ranks / (span.ranks - 1)
    is_cause = (
        more_ns >= _LEAST_SHARE * mean_step_ns(span)
        and second_ns <= _NEXT_SHARE * more_ns
        and more_ns - usual.more_ns.get(rank, 0) >= _CAUSED_SHARE * longer_ns
        and waited_ns >= _WAITED_SHARE * longer_ns
    )
    return (rank, more_ns) if is_cause else (None, 0)


def busiest(span: Span) -> tuple[int, int, int]:
    """Return the rank that works longest, and by how much than the others; so much the next."""
    (first_ns, negative_rank), (second_ns, _), *_ = (*span.busiest, *span.busiest)
    own_ns = (span.total_ns - span.waited_ns) // max(span.rank_steps, 1)
    others_ns = (own_ns * span.ranks - first_ns) // max(span.ranks - 1, 1)
    return -negative_rank, first_ns - others_ns, second_ns - others_ns


def mean_waited_ns(span: Span) -> int:
    """Return how long a rank waits for communication in a step."""
    return span.waited_ns // max(span.rank_steps, 1)


def mean_step_ns(span: Span) -> int:
    """Return how long a step takes."""
    return span.total_ns // max(span.rank_steps, 1)
