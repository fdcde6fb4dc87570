"""Spans of a rolling recording in which one rank works longer, and all others wait for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from dsprof.analysis.aggregates.history import History, Span
from dsprof.trace.rolling.rollups import SPANS_S

_LEAST_SHARE = 0.05
"""By this share of a step the rank works longer than the mean of the others."""
_NEXT_SHARE = 0.5
"""The next rank works longer by at most this share of that."""
_LONGER_SHARE = 0.05
"""By this share of the usual step those of the span are longer: else no rank waits for it."""
_OCCASIONAL = 0.2
"""Of the recorded time: a rank that stands out for longer is judged by its newest steps."""


class BusySpan(NamedTuple):
    """A span in which one rank stands out; times are means per step."""

    begin_s: int
    length_s: int
    rank: int
    more_ns: int  # that it works longer than the others
    step_ns: int
    usual_ns: int  # a step of the run
    steps: int
    step: int  # the slowest of the span
    late_steps: int  # about: so many like the slowest would lengthen the span as much

    @property
    def lost_ns(self) -> int:
        """How much longer all its steps take."""
        return (self.step_ns - self.usual_ns) * self.steps


def busy_spans(history: History) -> list[BusySpan]:
    """Return the spans of the rank that stands out most often, in order of time."""
    length_s, spans = history.finest
    usual_ns = int(median(_step_ns(span) for span in spans.values())) if spans else 0
    found = _found(spans, length_s, usual_ns)
    if len(found) > _OCCASIONAL * len(spans):
        return []
    if length_s != SPANS_S[0]:
        begins = {one.begin_s for one in found}
        short = _found(history.longest, SPANS_S[0], usual_ns)
        found += [one for one in short if one.begin_s // length_s * length_s not in begins]
    (rank, _), *_ = Counter(one.rank for one in found).most_common(1) or [(-1, 0)]
    return sorted(one for one in found if one.rank == rank)


def _found(spans: Mapping[int, Span], length_s: int, usual_ns: int) -> list[BusySpan]:
    busy = (_busy(begin_s, length_s, span, usual_ns) for begin_s, span in spans.items())
    return [one for one in busy if one is not None]


def _step_ns(span: Span) -> int:
    return span.total_ns // max(span.rank_steps, 1)


def _busy(begin_s: int, length_s: int, span: Span, usual_ns: int) -> BusySpan | None:
    if span.ranks < 2:
        return None
    (first_ns, negative_rank), (second_ns, _) = span.busiest
    own_ns = (span.total_ns - span.blocked_ns) // max(span.rank_steps, 1)
    others_ns = (own_ns * span.ranks - first_ns) // (span.ranks - 1)
    step_ns, more_ns = _step_ns(span), first_ns - others_ns
    if more_ns < _LEAST_SHARE * step_ns or second_ns - others_ns > _NEXT_SHARE * more_ns:
        return None
    slowest_ns, _, step = span.slowest
    longer_ns = step_ns - usual_ns
    if longer_ns <= _LONGER_SHARE * usual_ns:
        return None
    late_steps = round(longer_ns * span.steps / (slowest_ns - usual_ns))
    times = more_ns, step_ns, usual_ns
    return BusySpan(begin_s, length_s, -negative_rank, *times, span.steps, step, max(late_steps, 1))
