"""Spans of a rolling recording in which one rank works longer, and all others wait for it."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from dsprof.analysis.aggregates.history import History, Span
from dsprof.trace.rolling.rollups import SPANS_S

_LEAST_SHARE = 0.05
"""By this share of a step the rank works longer than the mean of the others."""
_NEXT_SHARE = 0.5
"""The next rank works longer by at most this share of that."""
_OCCASIONAL = 0.2
"""Of the recorded time: a rank that stands out for longer is judged by its newest steps."""


class BusySpan(NamedTuple):
    """A span in which one rank stands out; times are means per step."""

    begin_s: int
    length_s: int
    rank: int
    more_ns: int
    step_ns: int
    step: int  # the slowest of the span


def busy_spans(history: History) -> list[BusySpan]:
    """Return the spans of the rank that stands out most often, in order of time."""
    length_s, spans = history.finest
    found = [one for begin_s, span in spans.items() if (one := _busy(begin_s, length_s, span))]
    if len(found) > _OCCASIONAL * len(spans):
        return []
    if length_s != SPANS_S[0]:
        found += [
            one
            for begin_s, span in history.longest.items()
            if (one := _busy(begin_s, SPANS_S[0], span))
        ]
    (rank, _), *_ = Counter(one.rank for one in found).most_common(1) or [(-1, 0)]
    return sorted(one for one in found if one.rank == rank)


def _busy(begin_s: int, length_s: int, span: Span) -> BusySpan | None:
    if span.ranks < 2:
        return None
    (first_ns, negative_rank), (second_ns, _) = span.busiest
    own_ns = (span.total_ns - span.blocked_ns) // max(span.rank_steps, 1)
    others_ns = (own_ns * span.ranks - first_ns) // (span.ranks - 1)
    step_ns = span.total_ns // max(span.rank_steps, 1)
    more_ns = first_ns - others_ns
    if more_ns < _LEAST_SHARE * step_ns or second_ns - others_ns > _NEXT_SHARE * more_ns:
        return None
    return BusySpan(begin_s, length_s, -negative_rank, more_ns, step_ns, span.slowest[2])
