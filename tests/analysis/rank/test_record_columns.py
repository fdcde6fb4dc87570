from __future__ import annotations

import numpy as np

from dsprof.analysis.rank.record_columns import span_columns, step_columns
from dsprof.analysis.rank.remembered import remembered, unchanging
from dsprof.trace.rank_trace import RankTrace
from tests.factories.trace import ns, rank_trace, span, step


def test_of_a_step_that_occurs_twice_the_last_row_is_taken() -> None:
    steps = [step(7, 0, 10), step(5, 10, 30), step(7, 40, 90)]
    columns = step_columns(rank_trace(steps=steps))
    assert columns.rows_of(np.array([5, 7])).tolist() == [1, 2]
    assert (columns.end_ns - columns.start_ns).tolist() == [ns(10), ns(20), ns(50)]


def test_spans_are_chosen_by_their_name() -> None:
    spans = [span("forward", 0, 1), span("backward", 1, 2), span("forward", 3, 4, step=1)]
    columns = span_columns(rank_trace(spans=spans))
    assert columns.names == ["forward", "backward"]
    assert columns.step[columns.named("forward")].tolist() == [0, 1]
    assert not columns.named("step").any()
    assert len(span_columns(rank_trace()).named("forward")) == 0


def test_a_fact_is_found_once_while_its_trace_does_not_change() -> None:
    asked: list[int] = []

    @remembered
    def rank_of(trace: RankTrace) -> int:
        asked.append(trace.rank)
        return trace.rank

    one, other = rank_trace(0), rank_trace(1)
    with unchanging(one):
        assert [rank_of(one), rank_of(one), rank_of(other)] == [0, 0, 1]
    assert asked == [0, 1]
    assert (rank_of(one), asked) == (0, [0, 1, 0])
