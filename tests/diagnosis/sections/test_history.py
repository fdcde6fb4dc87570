"""What a report says of the steps that a rolling recording lacks."""

from __future__ import annotations

import re

from dsprof.diagnosis.build import diagnosis_of
from dsprof.diagnosis.model import Diagnosis
from dsprof.reports import render
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.rolling.rollups import merge as add
from dsprof.trace.schema import Kept, OpTotals, RollUp
from tests.analysis.aggregates.test_history import recorded
from tests.factories.trace import rank_trace, step, summary, sync

SECOND_NS = 10**9


def diagnosed(*traces: RankTrace) -> tuple[Diagnosis, str]:
    diagnosis = diagnosis_of(summary(*traces), {})
    return diagnosis, render(diagnosis, "html").decode()


def detailed(rank: int) -> RankTrace:
    """A rank that still has details of all its steps."""
    trace = recorded(rank)
    trace.steps = [step(n, n, n + 1) for n in range(400)]
    return trace


def with_gap(rank: int) -> RankTrace:
    """A rank that recorded 120 of 220 steps."""
    spans = [RollUp(at, 10, at, 10, 10 * SECOND_NS) for at in (*range(0, 100, 10), 200, 210)]
    trace = rank_trace(rank, steps=[step(n, n, n + 1) for n in (*range(100), *range(200, 220))])
    trace.rollups = {one.span: one for one in spans}
    return trace


def test_sums_over_time_of_ranks_without_steps_are_shown() -> None:
    traces = [rank_trace(r, comm=[sync("all_reduce", at, 10) for at in (5, 95)]) for r in range(2)]
    for rank, trace in enumerate(traces):
        trace.newest_from = 2
        spans = [
            RollUp(
                at,
                length_s,
                0,
                total_ns=8 * SECOND_NS,
                blocked_ns=(1 + rank) * SECOND_NS,
                calls=3,
                nbytes=16 << 20,
                rss_bytes=(1 + rank) << 30,
                ops={"all_reduce": OpTotals(3, 16 << 20, SECOND_NS)},
                until_ns=at * SECOND_NS,
            )
            for length_s, begins in ((10, (0, 10)), (300, (0,)), (3600, (0,)))
            for at in begins
        ]
        for span in spans[2:]:
            add(span, spans[1])
        trace.rollups = {one.span: one for one in spans}
    diagnosis, page = diagnosed(*traces)
    found = diagnosis.time_spans
    assert (found.length_s, found.ranks, not diagnosis.history.spans) == (10, 2, True)
    assert [(one.begin_s, one.recorded_ns, one.waited_ns) for one in found.spans] == [
        (at, 8 * SECOND_NS, 3 * SECOND_NS // 2) for at in (0, 10)
    ]
    assert {(one.calls, one.bytes, one.rss_bytes) for one in found.spans} == {
        (3, 16 << 20, 2 << 30)
    }
    assert [(one.op, one.calls, one.bytes) for one in found.ops] == [("all_reduce", 12, 64 << 20)]
    assert "2 ranks recorded no steps, so figures per step are unknown." in page
    words = page.replace("\N{NO-BREAK SPACE}", " ")
    assert "Bytes per second, mean over ranks, in spans of 10.0 s, at most 2.10 MB/s." in words
    assert "blocked in communication, mean over ranks, in spans of 10.0 s, at most 19 %." in words
    assert len(set(re.findall(r'class="lanes" width="(\d+)"', page.partition("</header>")[0]))) == 1
    assert diagnosis.tiles[0].value == "19 %"
    (note,) = (note for note in diagnosis.quality.notes if note.startswith("The run has no steps"))
    assert "records of the last 100 ms are kept, and sums over time" in note


def test_of_a_rank_without_steps_a_length_that_lacks_time_is_not_shown() -> None:
    trace = rank_trace(0, comm=[sync("all_reduce", 5, 10)])
    spans = [RollUp(at, 10, 0, total_ns=10 * SECOND_NS) for at in (20, 30)]
    spans += [RollUp(0, length_s, 0, total_ns=40 * SECOND_NS) for length_s in (300, 3600)]
    trace.rollups = {one.span: one for one in spans}
    assert diagnosed(trace)[0].time_spans.length_s == 300


def test_without_steps_only_the_newest_time_is_kept() -> None:
    traces = [rank_trace(r, comm=[sync("all_reduce", at, 10) for at in (5, 95)]) for r in range(2)]
    for trace in traces:
        trace.newest_from = 2
    diagnosis, page = diagnosed(*traces)
    assert diagnosis.history.newest_ns == 100_000_000
    assert diagnosis.quality.line.startswith(
        "2 of 2 ranks, details only of the last 100 ms; 1 note"
    )
    (note,) = (note for note in diagnosis.quality.notes if note.startswith("The run has no steps"))
    assert "records of the last 100 ms are kept, and no sums." in note
    assert "whole record" not in page
    for trace in traces:
        trace.newest_from = 0
    assert diagnosed(*traces)[0].quality.line.startswith("2 of 2 ranks, complete")


def test_steps_larger_than_the_budget_are_not_called_absent() -> None:
    traces = [recorded(0), recorded(1)]
    for trace in traces:
        trace.steps, trace.kept, trace.newest_from = [], {}, 400
    diagnosis, page = diagnosed(*traces)
    fix = "Raise budget_mb: a step has more records than it keeps in detail."
    assert diagnosis.headline.line == f"Only sums of 400 steps are kept. {fix}"
    (note,) = (note for note in diagnosis.quality.notes if "are kept" in note)
    assert "Details of 0 of 400 steps are kept." in note
    assert "step 400" not in note
    assert "No step is kept in detail." in page
    traces[0].lost_parts = [".tail0"]
    lost = diagnosed(*traces)[0].headline.line
    assert lost == "Only sums of 400 steps are kept. Copy all files of a rank."


def test_details_are_of_the_rank_that_lacks_most() -> None:
    diagnosis, page = diagnosed(detailed(0), recorded(1))
    assert (diagnosis.history.steps, diagnosis.history.detailed_steps) == (400, 6)
    assert "details of 6 of 400 steps" in diagnosis.quality.line
    assert any("Details of 6 of 400 steps are kept" in note for note in diagnosis.quality.notes)
    assert "6 steps are kept in detail: all from step 395 on, and a selection" in page


def test_a_rank_that_ended_early_with_all_details_lacks_none() -> None:
    early = recorded(1, steps=20)
    early.steps = [step(n, n, n + 1) for n in range(20)]
    assert diagnosed(detailed(0), early)[0].history.detailed_steps == 400


def test_the_note_says_what_is_described_where_all_details_are_kept() -> None:
    diagnosis, page = diagnosed(detailed(0), detailed(1))
    (note,) = (note for note in diagnosis.quality.notes if "are kept" in note)
    assert "describe the newest steps, from step 395 on" in note
    assert "400 steps are kept in detail. Findings" in page


def test_steps_that_were_not_recorded_are_in_no_sum() -> None:
    diagnosis, page = diagnosed(with_gap(0), with_gap(1))
    assert (diagnosis.history.steps, diagnosis.history.lost_steps) == (120, 100)
    assert diagnosis.run.steps == 120
    assert "100 steps not recorded" in diagnosis.quality.line
    assert "cover 120 steps; up to 100 steps of a rank were not recorded" in page


def test_a_rank_that_ended_before_a_captured_step_is_not_late() -> None:
    early, late, ended = recorded(0), recorded(1), recorded(2, steps=100)
    early.kept[200] = Kept(200, "capture")
    late.kept.clear()
    ended.kept.clear()
    (kept,) = diagnosed(early, late, ended)[0].history.kept
    assert (kept.ranks, kept.late_ranks) == (1, [1])


def test_unusual_steps_that_are_not_shown_are_counted() -> None:
    trace = recorded(0)
    trace.kept = {n: Kept(n, "slow", 1 + n) for n in range(0, 390, 3)} | {391: Kept(391, "sample")}
    history, page = diagnosed(trace)[0].history, diagnosed(trace)[1]
    assert (len(history.kept), history.kept_left_out) == (100, 30)
    assert "(30 more rows left out)" in page
    assert "dsprof report PATH --steps 387:388" in page


def test_a_captured_window_is_selected_as_a_whole() -> None:
    trace = recorded(0)
    trace.kept = {n: Kept(n, "alarm", 2.0, "step 12 of rank 1") for n in range(8, 20)}
    assert "dsprof report PATH --steps 8:20" in diagnosed(trace)[1]


def test_without_a_gap_the_sums_cover_all_steps() -> None:
    diagnosis, page = diagnosed(recorded(0), recorded(1))
    assert diagnosis.history.lost_steps == 0
    assert "These sums cover all 400 steps" in page
