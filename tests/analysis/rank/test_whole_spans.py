"""Recordings whose oldest sums over short spans were dropped."""

from __future__ import annotations

from dsprof.analysis.aggregates.epochs import Epochs
from dsprof.analysis.aggregates.history import History
from dsprof.analysis.aggregates.rank_times import RankTimes
from dsprof.analysis.rank.whole_spans import whole_spans
from dsprof.analysis.run.busy_spans import busy_spans
from dsprof.analysis.summary import RankClock
from dsprof.diagnosis.build import diagnosis_of
from dsprof.trace.rank_trace import RankTrace
from tests.analysis.aggregates.test_history import at_pace, recorded
from tests.factories.trace import summary


def without_oldest(trace: RankTrace, before_s: int) -> RankTrace:
    dropped = [span for span in trace.rollups if span[0] == 10 and span[1] < before_s]
    for span in dropped:
        del trace.rollups[span]
    return trace


def test_sums_cover_the_whole_run_where_short_spans_were_dropped() -> None:
    trace = without_oldest(recorded(0), 200)
    assert [*whole_spans(trace)] == [300, 3600]
    length_s, spans = History.collect(trace, RankClock()).finest
    assert (length_s, sum(span.steps for span in spans.values())) == (300, 400)
    (times,) = RankTimes.collect(trace, RankClock()).ranks.values()
    assert (times.first_step[0], times.steps.sum()) == (0, 400)


def test_a_length_that_one_rank_has_dropped_is_shown_of_none() -> None:
    diagnosis = diagnosis_of(summary(recorded(0), without_oldest(recorded(1), 200)), {})
    assert diagnosis.history.length_s == 300
    assert [span.steps for span in diagnosis.history.spans] == [300, 100]
    assert diagnosis.history.map.steps[0][0] == 0


def test_a_rank_that_works_longer_is_found_where_short_spans_were_dropped() -> None:
    traces = [without_oldest(at_pace(rank, range(1200, 1260)), 1800) for rank in range(3)]
    first, *others = (History.collect(trace, RankClock()) for trace in traces)
    for other in others:
        first = first.merge(other)
    (found,) = busy_spans(first)
    assert (found.begin_s, found.length_s, found.rank) == (1200, 300, 1)


def test_the_first_step_of_an_epoch_is_known_where_its_details_were_dropped_too() -> None:
    trace = without_oldest(recorded(0), 200)
    trace.steps = []
    assert Epochs.collect(trace, RankClock()).span.steps == (0, 399)
