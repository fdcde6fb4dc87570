"""The whole of a rolling recording: sums over time of all ranks, and what has details."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest

from dsprof.analysis.aggregates import history
from dsprof.analysis.aggregates.history import History
from dsprof.analysis.aggregates.rank_times import MOST_SPANS, RankSpans, RankTimes
from dsprof.analysis.run.busy_spans import BusySpan, busy_spans
from dsprof.analysis.summary import RankClock
from dsprof.diagnosis.build import diagnosis_of
from dsprof.findings.finding import Status
from dsprof.reports.html.heat_map import heat_map
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.rolling.rollups import RollUps
from dsprof.trace.schema import Kept, OpTotals, RollUp, StepTotals
from tests.factories.trace import rank_trace, step, summary

SECOND_NS = 10**9


def sums(number: int, seconds: float = 1, at_s: int | None = None) -> StepTotals:
    end_ns = (number if at_s is None else at_s) * SECOND_NS
    ops = {"all_reduce": OpTotals(2, 100, 10)}
    return StepTotals(number, end_ns - round(seconds * SECOND_NS), end_ns, {"step": 5}, 0, ops)


def recorded(rank: int, steps: int = 400) -> RankTrace:
    """A rank whose steps of a second are all summed up; rank 1 is slow in step 200."""
    spans: list[RollUp] = []
    rollups = RollUps()
    totals = [sums(n, 3 if (rank, n) == (1, 200) else 1) for n in range(steps)]
    for one in totals:
        spans += rollups.add(one, one.end_ns // SECOND_NS)
    spans += rollups.end()
    newest = [step(n, n, n + 1) for n in range(steps - 5, steps)]
    trace = rank_trace(rank, steps=[step(200, 200, 201), *newest])
    trace.header.started_epoch_ns = 0
    trace.rollups = {one.span: one for one in spans}
    trace.totals = {one.step: one for one in totals[-30:]}
    trace.newest_from = steps - 5
    trace.kept = {200: Kept(200, "slow", 3.0)}
    return trace


def collected(trace: RankTrace) -> History:
    return History.collect(trace, RankClock())


def test_ranks_add_up_in_any_order() -> None:
    ranks = [collected(recorded(rank)) for rank in range(3)]
    orders = [a.merge(b).merge(c) for a, b, c in itertools.permutations(ranks)]
    assert all(one == orders[0] for one in orders)
    spans = orders[0].spans[300]
    assert [(one.ranks, one.steps, one.rank_steps) for one in spans.values()] == [
        (3, 300, 900),
        (3, 100, 300),
    ]
    assert spans[0].slowest == (3 * SECOND_NS, -1, 200)
    assert spans[300].nbytes == 3 * 100 * 100
    assert orders[0].kept[200].ranks == 3


def test_other_recordings_have_no_history() -> None:
    other = collected(rank_trace(0, steps=[step(0, 0, 1)]))
    assert not other.spans
    assert other.merge(collected(recorded(1))) == collected(recorded(1))


def test_figures_are_of_the_newest_steps_and_the_rest_is_named() -> None:
    diagnosis = diagnosis_of(summary(recorded(0), recorded(1)), {})
    assert [row.step for row in diagnosis.steps.rows if row.is_measured] == [396, 397, 398, 399]
    assert diagnosis.run.steps == 400
    assert (diagnosis.history.length_s, diagnosis.history.detailed_steps) == (10, 6)
    assert [(one.step, one.why) for one in diagnosis.history.kept] == [(200, "slow")]
    assert any("6 of 400 steps are kept" in note for note in diagnosis.quality.notes)
    assert "details of 6 of 400 steps" in diagnosis.quality.line


def test_ranks_that_did_not_keep_a_captured_step_are_named() -> None:
    early, late = recorded(0), recorded(1)
    early.kept[200] = Kept(200, "capture")
    late.kept.clear()
    (kept,) = diagnosis_of(summary(early, late), {}).history.kept
    assert (kept.ranks, kept.late_ranks) == (1, [1])


@pytest.mark.parametrize("why", ["change", "first", "slow", "sample"])
def test_a_rank_that_kept_a_captured_step_for_another_reason_is_not_late(why: str) -> None:
    ranks = [recorded(rank) for rank in range(3)]
    ranks[0].kept[200] = Kept(200, "alarm", 1.0, "step 199 of rank 0: took 4 times the usual time")
    ranks[1].kept[200] = Kept(200, why, 1.0)
    ranks[2].kept.clear()
    for order in itertools.permutations(ranks):
        (kept,) = diagnosis_of(summary(*order), {}).history.kept
        assert (kept.why, kept.ranks, kept.late_ranks) == ("alarm", 2, [2])


def test_which_ranks_kept_unusual_steps_is_bounded() -> None:
    """Otherwise it would grow with ranks times steps."""
    traces = [recorded(rank, steps=2000) for rank in range(64)]
    for trace in traces:
        trace.header.world_size = 1 << 14
        trace.kept = {n: Kept(n, "slow", 1.2 + n % 7) for n in range(trace.rank, 2000, 2)}
        trace.kept |= {n: Kept(n, "alarm", 1.0, "memory") for n in range(1000, 1032)}
    found = reduce(History.merge, map(collected, traces)).kept
    assert {found[n].named for n in range(1000, 1032)} == {frozenset(range(64))}
    named = sum(len(one.named) for one in found.values() if not one.is_captured)
    assert named == 64 * 16


def at_pace(
    rank: int, late: range, culprit: int | None = 1, hours: int = 1, waits_on: str = "host"
) -> RankTrace:
    """A rank with a step each second, of which it waits a half; in late steps nobody waits for 1.5.

    All steps are as long on each rank, as in synchronous training.
    """

    def times(n: int) -> tuple[float, float]:
        seconds = 1.5 if n in late else 1.0
        own = seconds if culprit in (rank, None) and n in late else 0.5
        return own, seconds - own

    return with_times(rank, map(times, range(hours * 3600)), waits_on)


def with_times(
    rank: int, times: Iterable[tuple[float, float]], waits_on: str = "host"
) -> RankTrace:
    """A rank that works and then waits for so many seconds, in a step each second.

    Waits are the host's or those of a device's streams, or not measured.
    """
    spans: list[RollUp] = []
    rollups = RollUps()
    for n, (own, waited) in enumerate(times):
        seconds, waited_ns = own + waited, round(waited * SECOND_NS)
        ops = {"all_reduce": OpTotals(1, 100, waited_ns if waits_on == "host" else 0)}
        stalled_ns = waited_ns if waits_on == "device" else 0
        end_ns = n * SECOND_NS
        one = StepTotals(n, end_ns - round(seconds * SECOND_NS), end_ns, {}, stalled_ns, ops)
        spans += rollups.add(one, n)
    trace = rank_trace(rank, steps=[step(n, n, n + 1) for n in range(3)])
    trace.header.started_epoch_ns = 0
    trace.rollups = {one.span: one for one in [*spans, *rollups.end()]}
    return trace


def busy(late: range, **fields: Any) -> list[BusySpan]:
    parts = (collected(at_pace(rank, late, **fields)) for rank in range(3))
    return busy_spans(reduce(History.merge, parts))


def test_a_rank_that_works_longer_for_a_while_is_found() -> None:
    (found,) = busy(range(1005, 1010))
    assert (found.begin_s, found.length_s, found.rank) == (1000, 10, 1)
    assert found.more_ns == pytest.approx(SECOND_NS / 2, abs=2)
    assert (found.step_ns, found.usual_ns) == (SECOND_NS * 5 // 4, SECOND_NS)
    assert (found.late_steps, found.lost_ns) == (5, SECOND_NS * 5 // 2)
    assert 1005 <= found.step < 1010


def test_it_is_found_by_the_stalls_of_devices() -> None:
    assert busy(range(1005, 1010), waits_on="device") == busy(range(1005, 1010))


def test_without_measured_waits_the_rank_is_unknown() -> None:
    (found,) = busy(range(1005, 1010), waits_on="")
    assert (found.begin_s, found.rank, found.more_ns, found.late_steps) == (1000, None, 0, 5)
    assert busy(range(5), waits_on="") == []  # of the warm-up


def test_the_report_says_that_a_late_rank_would_not_be_seen() -> None:
    run = summary(*(at_pace(rank, range(1005, 1010), waits_on="") for rank in range(3)))
    diagnosis = diagnosis_of(run, {})
    [finding] = [one for one in diagnosis.findings if one.rule == "periodic-slow-step"]
    assert (finding.status, finding.ranks) == (Status.INFO, ())
    assert finding.problem == "At least 5 of 3,600 steps take 500 ms longer"
    assert finding.summary.endswith("Unknown: whether one rank delays them.")
    assert diagnosis.history.map.marks == []


def test_it_is_found_in_a_recording_too_long_for_short_spans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "MOST_SPANS", 300)
    found = busy(range(1005, 1008))
    assert [(one.begin_s, one.length_s, one.rank) for one in found] == [(1000, 10, 1)]


def test_a_rank_that_works_longer_while_steps_are_as_long_delays_nobody() -> None:
    parts = [collected(at_pace(rank, range(0))) for rank in range(3)]
    late = parts[1].spans[10]
    late[1000] = replace(late[1000], busiest=((SECOND_NS, -1),))
    assert busy_spans(reduce(History.merge, parts)) == []


@pytest.mark.parametrize(
    ("late", "culprit"),
    [
        (range(0), 1),
        (range(1005, 1010), None),  # all ranks work longer
        (range(3600), 1),  # always: a straggler, which the newest steps show
    ],
)
def test_no_rank_stands_out(late: range, culprit: int | None) -> None:
    assert busy(late, culprit=culprit) == []


def busy_with(
    work: Callable[[int, int], float], transfer: Callable[[int], float]
) -> list[BusySpan]:
    """Find a rank of four that work for so long in a step of 600, and wait for the last of them."""
    own = np.array([[work(rank, n) for n in range(600)] for rank in range(4)])
    waited = own.max(axis=0) - own + [transfer(n) for n in range(600)]
    traces = (with_times(rank, zip(own[rank], waited[rank], strict=True)) for rank in range(4))
    return busy_spans(reduce(History.merge, map(collected, traces)))


LONG = range(200, 260)


def imbalanced(rank: int) -> float:
    """Rank 3 always works longest."""
    return 0.6 if rank == 3 else 0.5


def test_a_rank_that_always_works_longest_does_not_lengthen_steps_that_all_ranks_lengthen() -> None:
    def network(n: int) -> float:
        return 0.3 if n in LONG else 0.1

    assert (
        busy_with(lambda rank, n: imbalanced(rank) * (1.4 if n in LONG else 1), lambda n: 0.1) == []
    )
    assert (
        busy_with(lambda rank, n: imbalanced(rank) + (2 if n in LONG else 0), lambda n: 0.1) == []
    )
    assert busy_with(lambda rank, n: imbalanced(rank), network) == []
    assert busy_with(lambda rank, n: imbalanced(rank), lambda n: network(n) / 2) == []
    at_fault = range(400, 420)
    found = busy_with(
        lambda rank, n: imbalanced(rank) + (0.5 if rank == 1 and n in at_fault else 0), network
    )
    assert [(one.begin_s, one.rank, one.late_steps) for one in found] == [
        (400, 1, 10),
        (410, 1, 10),
    ]


def test_a_span_that_holds_a_long_step_of_all_ranks_on_one_of_them_accuses_none() -> None:
    """Where that step ends a moment later than on the others, or the clock is ahead."""

    def times(rank: int) -> Iterable[tuple[float, float]]:
        return ((9 if n == (200 if rank == 2 else 199) else 0.5, 0.1) for n in range(600))

    traces = (with_times(rank, times(rank)) for rank in range(4))
    assert busy_spans(reduce(History.merge, map(collected, traces))) == []


def test_the_report_names_no_rank_for_one_or_two_late_steps() -> None:
    run = summary(*(at_pace(rank, range(1005, 1007)) for rank in range(3)))
    [finding] = [one for one in diagnosis_of(run, {}).findings if one.rule == "periodic-slow-step"]
    assert (finding.status, finding.ranks) == (Status.PASS, ())


def test_the_report_names_the_rank_that_stands_out() -> None:
    run = summary(*(at_pace(rank, range(1005, 1010)) for rank in range(3)))
    diagnosis = diagnosis_of(run, {})
    [finding] = [one for one in diagnosis.findings if one.rule == "periodic-slow-step"]
    assert (finding.status, finding.ranks) == (Status.INFO, (1,))
    assert finding.problem == "Rank 1 delays at least 5 of 3,600 steps by 500 ms: 0.1 % of the run"
    assert diagnosis.headline.line.startswith(finding.problem)


def test_threads_that_wait_at_the_same_time_wait_for_no_more_than_the_step() -> None:
    traces = [with_times(rank, [(0.2, 0.8)] * 600) for rank in range(2)]
    for span in traces[1].rollups.values():
        span.blocked_ns *= 2
    _, busiest = reduce(History.merge, map(collected, traces)).spans[10][0].busiest
    assert busiest == (0, -1)
    found = diagnosis_of(summary(traces[1]), {}).history
    assert {span.blocked_ns for span in found.spans} == {SECOND_NS}
    assert found.map.exposed_ns == found.map.total_ns


def spans_of(trace: RankTrace) -> RankSpans:
    (spans,) = RankTimes.collect(trace, RankClock()).ranks.values()
    return spans


@pytest.mark.parametrize(("hours", "length_s"), [(1, 300), (11, 3600)])
def test_a_rank_has_few_spans_however_long_it_ran(hours: int, length_s: int) -> None:
    spans = spans_of(at_pace(0, range(0), hours=hours))
    assert spans.length_s == length_s
    assert len(spans.begin_s) <= MOST_SPANS
    assert spans.steps.sum() == hours * 3600


def test_longer_spans_have_the_sums_of_shorter_ones() -> None:
    short = spans_of(at_pace(0, range(100, 200)))
    whole = short.coarser(3600)
    assert (whole.begin_s.tolist(), whole.first_step.tolist()) == ([0], [0])
    assert whole.total_ns.tolist() == [short.total_ns.sum()]
    assert whole.waited_ns.tolist() == [short.waited_ns.sum()]


def test_a_month_of_hours_is_bounded() -> None:
    hours = np.arange(24 * 30, dtype=np.int64) * 3600
    trace = rank_trace(0)
    trace.header.started_epoch_ns = 0
    trace.rollups = {
        (3600, begin_s): RollUp(begin_s, 3600, begin_s, 3600, 3600 * SECOND_NS)
        for begin_s in hours.tolist()
    }
    spans = spans_of(trace)
    assert spans.length_s == 86_400
    assert spans.steps.tolist() == [86_400] * 30


def test_the_map_names_the_last_step_of_a_span_in_which_the_disk_refused_some() -> None:
    spans = [RollUp(at, 10, at, 6, 6 * SECOND_NS, lost=4) for at in range(0, 600, 10)]
    trace = rank_trace(0)
    trace.rollups = {one.span: one for one in spans}
    assert diagnosis_of(summary(trace), {}).history.map.steps == [
        (n, n + 9) for n in range(0, 600, 10)
    ]
    longer = spans_of(trace).coarser(300)
    assert longer.first_step.tolist() == [0, 300]
    assert (longer.last_step.tolist(), longer.steps.tolist()) == ([299, 599], [180, 180])


def test_the_map_of_the_whole_run_shows_the_rank_that_stands_out() -> None:
    run = summary(*(at_pace(rank, range(1200, 1260)) for rank in range(3)))
    found = diagnosis_of(run, {}).history.map
    assert (len(found.ranks), len(found.steps)) == (3, 12)
    own = np.array(found.total_ns) - np.array(found.exposed_ns)
    assert np.unravel_index(int(own.argmax()), own.shape) == (1, 4)
    assert found.steps[4][0] <= 1200 <= found.steps[4][1]
    assert {(mark.rank, mark.row, mark.column) for mark in found.marks} == {(1, 1, 4)}
    drawn = heat_map(found)
    assert drawn is not None
    assert "late: rank 1" in drawn.sentence
