from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.phases import NAMES, OTHERS, Phases, PhaseSums
from dsprof.analysis.summary import RankClock
from tests.factories.trace import (
    MS,
    captured,
    header,
    rank_trace,
    span,
    step,
    summary,
    sync,
    zero_rank,
)


def phases(*traces):
    return summary(*traces)[Phases].rows


def test_phases_of_measured_steps_and_the_waits_in_them():
    rows = phases(zero_rank(0, comm_ms=5), zero_rank(1, comm_ms=7))
    assert rows["forward"] == PhaseSums(8, 8, 8 * 40 * MS, 0, 0, ranks=2)
    assert rows["backward"] == PhaseSums(8, 8, 8 * 40 * MS, 4 * 12 * MS, 0, ranks=2)
    assert rows["backward"].busy_ms_per_step == pytest.approx(34)


def test_threads_at_the_same_time_count_once_and_annotations_not():
    spans = [span("backward", 0, 10), span("backward", 5, 12, thread=2)]
    spans.append(span("mine", 0, 50, is_annotation=True))
    rows = phases(rank_trace(steps=[step(0, 0, 100)], spans=spans))
    assert rows == {"backward": PhaseSums(2, 1, 12 * MS, 0, 0)}


def test_annotated_spans_have_sums_by_name_with_the_waits_in_them():
    spans = [span(name, at, at + 10, is_annotation=True) for at in (0, 20) for name in "ab"]
    comm = [sync("all_reduce", 24, 3, step=0)]
    trace = rank_trace(steps=[step(0, 0, 100)], spans=spans, comm=comm)
    once = PhaseSums(2, 1, 20 * MS, 3 * MS, 17 * MS)
    assert summary(trace)[Phases].annotated == {"a": {0: once}, "b": {0: once}}


def test_annotated_spans_are_kept_by_rank_and_added_up():
    def spans(length):
        return [span("load", 0, length, is_annotation=True)]

    phases = summary(*(rank_trace(r, steps=[step(0, 0, 100)], spans=spans(10 + r)) for r in (0, 1)))
    found = phases[Phases]
    assert {r: s.ns_per_step for r, s in found.annotated["load"].items()} == {
        0: 10 * MS,
        1: 11 * MS,
    }
    assert found.of_all_ranks("load") == PhaseSums(2, 2, 21 * MS, 0, 21 * MS, ranks=2)


def test_what_of_a_span_is_in_a_phase_is_not_outside():
    spans = [span("load", 0, 30, is_annotation=True), span("forward", 20, 50)]
    trace = rank_trace(steps=[step(0, 0, 100)], spans=spans)
    assert summary(trace)[Phases].annotated["load"][0].outside_ns == 20 * MS


@pytest.mark.parametrize(("ranks", "kept"), [(2, NAMES), (10_000, 13)])
def test_a_name_for_each_span_does_not_grow_the_summary(ranks, kept):
    spans = [span(f"batch {n}", n, n + 1, is_annotation=True) for n in range(kept + 20)]
    trace = rank_trace(steps=[step(0, 0, 200)], spans=spans, head=header(0, ranks))
    annotated = Phases.collect(trace, RankClock()).annotated
    assert len(annotated) == kept + 1
    assert annotated[OTHERS] == {0: PhaseSums(20, 1, 20 * MS, 0, 20 * MS)}


def test_host_waits_of_a_device_say_nothing():
    spans, comm = [span("step", 0, 10)], [sync("all_reduce", 1, 5, step=0)]
    trace = rank_trace(steps=[step(0, 0, 100)], spans=spans, comm=comm, head=header(device="cuda"))
    assert phases(trace)["step"].exposed_ns == 0


def test_steps_in_counters_have_no_phases():
    assert phases(captured(window=range(0), steps=8)) == {}


def test_merging_in_any_grouping_is_the_same():
    one, two, three = (summary(zero_rank(rank, 3))[Phases] for rank in range(3))
    assert one.merge(two).merge(three) == one.merge(two.merge(three))
