"""Occasional steps that one rank makes long, however few of them are in a sample."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.rank import sampling
from dsprof.analysis.run.delays import Delays, delays
from dsprof.diagnosis.build import diagnosis_of
from dsprof.findings.finding import Status
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.rolling.rollups import RollUps
from dsprof.trace.schema import StepTotals
from tests.factories.trace import rank_trace, step, summary, sync

RANKS, STEPS = 3, 600
LATE = range(301, 311)


def rank(
    number: int,
    late: Collection[int] = LATE,
    culprit: int | None = 1,
    device: str = "cpu",
    long: Collection[int] = (),
    more_ms: int = 40,
) -> RankTrace:
    """Steps of 100 ms; the late ones have `more_ms` more of the culprit's work, or of everybody's.

    Long ones have 26 ms more of everybody's.
    """
    comm, steps, at = [], [], 0.0
    for n in range(STEPS):
        more = more_ms if n in late else 26 if n in long else 0
        own = more if n in long or culprit in (number, None) else 0
        comm.append(sync("all_reduce", at + 70 + own, 20 + more - own, step=n, seq=n))
        steps.append(step(n, at, at + 100 + more))
        at += 100 + more
    trace = rank_trace(number, RANKS, comm=comm, steps=steps)
    trace.header.device = device
    return trace


def late_at_the_end(number: int, late: Collection[int]) -> RankTrace:
    """Rank 1 works for 40 ms after the last collective of a step: the others wait in the next."""
    comm, steps, at = [], [], 0.0
    for n in range(STEPS):
        own, waits = 40 * (number == 1 and n in late), 40 * (number != 1 and n - 1 in late)
        comm.append(sync("all_reduce", at + 70, 20 + waits, step=n, seq=n))
        steps.append(step(n, at, at + 100 + own + waits))
        at += 100 + own + waits
    trace = rank_trace(number, RANKS, comm=comm, steps=steps)
    trace.header.device = "cpu"
    return trace


def found(**fields: object) -> Delays | None:
    return delays(summary(*(rank(number, **fields) for number in range(RANKS)))[Steps])


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "STEPS", 256)


LENGTHS_NS = (140_000_000,) * len(LATE)
EXPECTED = Delays((1,), tuple(LATE), LENGTHS_NS, 40_000_000, 100_000_000, are_all=True)


def test_the_rank_that_works_longer_is_named() -> None:
    assert found() == EXPECTED


def test_the_rank_that_causes_most_of_the_lost_time_is_named() -> None:
    assert found(long=range(400, 407)) == EXPECTED
    assert found(long=range(400, 420)) is None


def test_a_rank_is_not_compared_with_those_that_mark_no_step() -> None:
    """As of a parameter server, which alone has an optimizer: whether others wait is unknown."""
    workers = (rank_trace(number, RANKS, comm=[sync("send", 70, 20)]) for number in (0, 2))
    assert delays(summary(rank(1), *workers)[Steps]) is None


@pytest.mark.usefixtures("few")
def test_long_steps_that_a_sample_misses_are_found() -> None:
    late = summary(*map(rank, range(RANKS)))[Steps]
    assert late.is_sampled
    assert len(set(late.numbers) & set(LATE)) < 4
    assert delays(late) == EXPECTED


def test_what_a_rank_does_at_the_end_of_its_step_delays_the_others_once() -> None:
    late = delays(summary(*(late_at_the_end(number, LATE[::2]) for number in range(RANKS)))[Steps])
    assert late is not None
    assert (late.ranks, late.steps) == ((1,), tuple(LATE[::2]))
    assert late.excess_ns == pytest.approx(40_000_000, abs=2)


@pytest.mark.usefixtures("few")
def test_a_sample_has_the_end_of_the_step_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "LONGEST", 0)
    late = delays(summary(*(late_at_the_end(number, LATE[::2]) for number in range(RANKS)))[Steps])
    assert late is not None
    assert late.ranks == (1,)
    assert set(late.steps) <= set(LATE[::2])


@pytest.mark.usefixtures("few")
def test_more_long_steps_than_are_kept_are_said_to_be_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "LONGEST", 0)
    late = found(late=range(301, 331))
    assert late is not None
    assert 3 < len(late.steps) < 30
    assert not late.are_all


@pytest.mark.usefixtures("few")
def test_long_steps_are_in_no_mean() -> None:
    usual, late = (
        summary(*(rank(number, steps) for number in range(RANKS)))[Steps] for steps in ((), LATE)
    )
    assert usual.measured == late.measured
    missed = [late.parts[number] for number in late.measured if number not in LATE]
    assert {part.total_ns for part in missed} == {100_000_000}
    assert len(missed) >= len(late.measured) - 3


def rolling(number: int) -> RankTrace:
    """A rank that kept the newest steps, every eighth before, and the late ones."""
    trace = rank(number)
    trace.newest_from = 540
    kept = {*LATE, *range(0, 540, 8), *range(540, STEPS)}
    trace.steps = [one for one in trace.steps if one.step in kept]
    totals = (StepTotals(n, 0, (n + 1) * 10**8) for n in range(STEPS))
    rollups = RollUps()
    spans = [span for one in totals for span in rollups.add(one, one.end_ns // 10**9)]
    trace.rollups = {span.span: span for span in (*spans, *rollups.end())}
    return trace


def test_steps_that_were_kept_for_being_slow_are_no_share_of_the_run() -> None:
    run = summary(*map(rolling, range(RANKS)))
    assert delays(run[Steps]) == replace(EXPECTED, are_all=False)
    [one] = [one for one in diagnosis_of(run, {}).findings if one.rule == "periodic-slow-step"]
    assert one.problem == "Rank 1 delays at least 10 of 600 steps by 40.0 ms: 0.7 % of the run"
    assert "(40 % of a usual step) between steps" in one.summary
    assert one.action.endswith("longest with --steps 301:302, all with --steps 301:311.")


def test_a_delay_of_several_steps_is_a_multiple_of_one() -> None:
    run = summary(*(rank(number, more_ms=40_000) for number in range(RANKS)))
    [one] = [one for one in diagnosis_of(run, {}).findings if one.rule == "periodic-slow-step"]
    assert "by 40.0 s (400 times a usual step) between steps" in one.summary


@pytest.mark.parametrize(
    "fields",
    [
        {"late": ()},
        {"late": LATE[:2]},  # may be anything
        {"culprit": None},  # all ranks work longer
        {"culprit": 7},  # nobody that is there does
        {"late": range(0, STEPS, 3)},  # what the run usually does
    ],
)
def test_nobody_is_named(fields: dict[str, object]) -> None:
    assert found(**fields) is None


@pytest.mark.usefixtures("few")
def test_without_measured_waits_the_report_says_that_the_rank_is_unknown() -> None:
    run = summary(*(rank(number, device="cuda") for number in range(RANKS)))
    late = delays(run[Steps])
    assert late is not None
    assert (late.ranks, late.steps) == ((), tuple(LATE))
    [one] = [one for one in diagnosis_of(run, {}).findings if one.rule == "periodic-slow-step"]
    assert (one.status, one.ranks) == (Status.INFO, ())
    assert one.problem == "10 of 600 steps take 40.0 ms longer"
    assert one.summary.endswith("Unknown: whether one rank delays them.")


@pytest.mark.usefixtures("few")
def test_without_measured_waits_a_few_steps_are_nothing() -> None:
    assert found(late=LATE[:2], device="cuda") is None


@pytest.mark.usefixtures("few")
def test_the_report_names_and_marks_it() -> None:
    diagnosis = diagnosis_of(summary(*map(rank, range(RANKS))), {})
    [one] = [one for one in diagnosis.findings if one.rule == "periodic-slow-step"]
    assert (one.status, one.ranks) == (Status.INFO, (1,))
    assert one.problem == "Rank 1 delays 10 of 600 steps by 40.0 ms: 0.7 % of the run"
    assert diagnosis.headline.line.startswith(one.problem)
    [late] = [one for one in diagnosis.findings if one.rule == "late-rank"]
    assert late.summary.endswith("; no rank delays two thirds of the steps by 5 % or more.")
    [tile] = [tile for tile in diagnosis.tiles if tile.label == "Straggler"]
    assert (tile.value, tile.detail) == ("rank 1, in some steps", one.problem)
    [mark] = [mark for mark in diagnosis.step_map.marks if mark.kind == "straggler"][:1]
    first, last = diagnosis.step_map.steps[mark.column]
    assert (mark.rank, mark.row) == (1, 1)
    assert first <= mark.step
    assert mark.step in LATE or first <= LATE[0] <= last


def test_a_finding_names_the_longest_of_many_late_steps() -> None:
    traces = [rank(number, range(301, 341)) for number in range(RANKS)]
    for trace in traces:
        trace.steps[339].end_ns += 5_000_000
    diagnosis = diagnosis_of(summary(*traces), {})
    [one] = [one for one in diagnosis.findings if one.rule == "periodic-slow-step"]
    assert one.problem.startswith("Rank 1 delays 40 of 600 steps")
    assert one.steps == (*range(301, 316), 339)
    assert next((line.why, line.step) for line in diagnosis.timelines) == ("worst", 339)
    assert "named" not in {line.why for line in diagnosis.timelines}


def test_a_few_late_steps_are_a_remark() -> None:
    diagnosis = diagnosis_of(summary(*(rank(number, LATE[:5]) for number in range(RANKS))), {})
    [one] = [one for one in diagnosis.findings if one.rule == "periodic-slow-step"]
    assert one.problem.startswith("Rank 1 delays 5 of 600 steps")
    assert diagnosis.headline.line.startswith("No certain fix found")
