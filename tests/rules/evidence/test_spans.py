from __future__ import annotations

from dsprof.analysis.aggregates.phases import Phases
from dsprof.rules.evidence.spans import Span, span_behind, span_outside
from dsprof.trace.rank_trace import RankTrace
from tests.factories.trace import ns, rank_trace, span, step, summary

LOADING = {0: 12, 1: 30, 2: 14, 3: 17}


def rank(number: int) -> RankTrace:
    """Two steps: a forward of 40 ms in which "augment" takes 3 ms, and "load" outside of it."""
    spans = []
    for n, start in enumerate((0, 100)):
        spans.append(span("forward", start, start + 40, n))
        spans.append(span("augment", start + 5, start + 8, n, is_annotation=True))
        load = start + 50 + LOADING[number]
        spans.append(span("load", start + 50, load, n, is_annotation=True))
    return rank_trace(number, 4, steps=[step(0, 0, 100), step(1, 100, 200)], spans=spans)


def phases() -> Phases:
    return summary(*map(rank, range(4)))[Phases]


def test_the_span_that_is_longer_than_the_median_of_the_others_is_named() -> None:
    found = span_behind(phases(), 1, (0, 2, 3), ns(16))
    assert found == Span('"load"', ns(30), ns(14))
    assert found.on_both == "30.0 ms per step, the others 14.0 ms"
    assert span_behind(phases(), 1, (0, 2, 3), ns(16) + 1) is None


def test_the_longest_span_outside_of_all_phases_is_named() -> None:
    mean_ns = ns(sum(LOADING.values()) / 4)
    assert span_outside(phases(), mean_ns) == Span('"load"', mean_ns)
    assert span_outside(phases(), mean_ns + 1) is None
    assert span_outside(Phases({}, {}), 0) is None
