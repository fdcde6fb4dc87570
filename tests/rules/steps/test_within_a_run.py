"""Rules on what changes from step to step: step-time-change, -drift and periodic-slow-step."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dsprof.findings.finding import Status
from dsprof.rules.causes import LATE
from dsprof.rules.rule import Rule
from dsprof.rules.steps.periodic_slow_step import PeriodicSlowStep
from dsprof.rules.steps.step_time_change import StepTimeChange
from dsprof.rules.steps.step_time_drift import StepTimeDrift
from tests.factories.trace import counters, rank_trace, said, span
from tests.rules.steps.stepwise import (
    Extra,
    columns_of,
    every,
    from_step,
    partial,
    rank,
    ranks,
    rolling,
    summed,
)

RULES = [
    StepTimeChange(),
    StepTimeDrift(),
    PeriodicSlowStep(),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.meta.id)
def test_steady_steps_pass(rule: Rule) -> None:
    assert said(rule, *ranks()).status is Status.PASS


@pytest.mark.parametrize(
    ("rule", "more", "others"),
    [
        (StepTimeChange(), from_step(30, 60), 1),
        (StepTimeDrift(), lambda n: n, 1),
        (PeriodicSlowStep(), every(10, 90), 1),
        (PeriodicSlowStep(), lambda n: 90 * (n in (9, 21, 28, 50)), 3),
        (PeriodicSlowStep(), lambda n: 3000 * (n == 30), 1),
    ],
)
def test_what_names_a_rank_is_a_facet_of_that_rank_being_late(
    rule: Rule, more: Extra, others: int
) -> None:
    waiting = [rank(n, waiting=more) for n in range(1, others + 1)]
    finding = said(rule, rank(0, computing=more), *waiting)
    assert (finding.ranks, finding.restates) == ((0,), LATE)
    assert not said(rule, *ranks(computing=more)).restates


def test_a_rank_that_only_sums_show_is_a_facet_of_that_rank_being_late() -> None:
    traces = summed(8, lambda n, at: 200 * (n == 3 and at in range(20, 23)))
    finding = said(PeriodicSlowStep(), *traces)
    assert (finding.ranks, finding.restates) == ((3,), LATE)


@pytest.mark.parametrize("rule", RULES[:2], ids=lambda rule: rule.meta.id)
def test_a_pass_says_which_steps_were_kept(rule: Rule) -> None:
    """Steps 100 to 199 were slow, and the record keeps the newest 100 of 600 and no other."""
    slow = lambda n: 40 * (100 <= n < 200)  # noqa: E731
    traces = [partial(rank(n, 600, computing=slow), range(500, 600)) for n in range(2)]
    for trace in traces:
        trace.newest_from = 500
    finding = said(rule, *traces)
    assert finding.status is Status.PASS
    assert re.search(r"from step 50\d to 599\.$", finding.summary)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.meta.id)
def test_few_steps_tell_nothing(rule: Rule) -> None:
    few = [rank(n, 8) for n in range(2)]
    assert said(rule, *few).status is Status.UNKNOWN
    assert said(rule, rank_trace()).status is Status.UNKNOWN


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.meta.id)
@pytest.mark.parametrize("kept", [range(30), range(30, 60), range(2, 9)])
def test_a_rank_recorded_for_a_part_of_the_run_changes_no_pace(rule: Rule, kept: range) -> None:
    """Its own steps are longer, so the mean over the ranks that are there changes with it."""
    slower = partial(rank(2, computing=lambda n: 90), kept)
    assert said(rule, *ranks(), slower).status is Status.PASS


def test_pace_changes_if_it_does_so_on_the_ranks_recorded_throughout() -> None:
    slow, other = rank(0, computing=from_step(30, 40)), rank(1, waiting=from_step(30, 40))
    gone = partial(rank(2), range(20))
    finding = said(StepTimeChange(), slow, other, gone)
    assert (finding.status, finding.ranks) == (Status.FAIL, (0,))
    assert "Rank 0 got slower; whether others did is unknown." in finding.cause
    finding = said(StepTimeChange(), *ranks(computing=from_step(30, 40)), gone)
    assert "on all ranks but rank 2." in finding.cause
    assert (
        "on all ranks but rank 2."
        in said(StepTimeDrift(), *ranks(computing=lambda n: n), gone).cause
    )
    assert (
        "on all ranks but rank 2:"
        in said(PeriodicSlowStep(), *ranks(computing=every(5, 60)), gone).cause
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.meta.id)
def test_of_ranks_that_relieve_each_other_nothing_is_said(rule: Rule) -> None:
    early = [partial(rank(n, computing=lambda n: 90), range(30)) for n in range(2)]
    late = [partial(rank(n), range(30, 60)) for n in range(2, 4)]
    finding = said(rule, *early, *late)
    assert finding.status is Status.UNKNOWN
    assert finding.summary == "Fewer than half of the ranks recorded the same steps."


@pytest.mark.parametrize(("share", "named"), [(0.45, (0,)), (0.55, ())])
def test_ranks_of_which_all_grow_by_half_of_the_step_are_not_named(
    share: float, named: tuple[int, ...]
) -> None:
    extras = (from_step(30, 40), lambda n: n, every(5, 60))
    for rule, extra in zip(RULES, extras, strict=True):
        less = rank(
            1,
            computing=lambda n, of=extra: share * of(n),
            waiting=lambda n, of=extra: (1 - share) * of(n),
        )
        assert said(rule, rank(0, computing=extra), less).ranks == named


def ms(rows: tuple[tuple[Any, ...], ...]) -> list[tuple[Any, ...]]:
    return [(name, *(round(ns / 1e7) * 10 for ns in cells)) for name, *cells in rows]


def test_the_parts_of_a_step_are_compared_in_a_table() -> None:
    changed = said(StepTimeChange(), *ranks(computing=from_step(30, 40)))
    assert ms(changed.evidence[0].rows) == [
        ("whole step", 100, 140),
        ("forward, backward and optimizer step", 80, 120),
        ("waits for communication", 20, 20),
        ("time outside all phases", 0, 0),
    ]
    growing = said(StepTimeDrift(), *ranks(between=lambda n: 4 * n))
    assert ms(growing.evidence[0].rows) == [
        ("whole step", 140, 200, 250, 310),
        ("forward, backward and optimizer step", 80, 80, 80, 80),
        ("waits for communication", 20, 20, 20, 20),
        ("time outside all phases", 40, 100, 150, 210),
    ]


def test_without_marked_phases_no_phase_is_the_cause() -> None:
    """A loop without DDP or an engine marks no forward, a device no phase."""
    for rule, extra in zip(RULES, (from_step(30, 40), lambda n: n, every(10, 90)), strict=True):
        traces = ranks(computing=extra)
        for trace in traces:
            trace.spans = [span("step", 100 * n, 100 * n + 1, n) for n in range(60)]
        finding = said(rule, *traces)
        assert "phases" not in finding.cause
        assert "forward" not in finding.cause
        assert "not blocked in" in finding.cause or "not exposed" in finding.cause


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.meta.id)
def test_steps_in_counters_alone_show_no_forwards_and_do_no_other_work(rule: Rule) -> None:
    """Of every tenth step in full detail, which recording makes longer, none is an evaluation."""
    traces = ranks(computing=every(10, 90))
    for trace in traces:
        trace.spans = [one for one in trace.spans if one.step % 10 == 9]
        trace.counters = [counters(n, blocked=20) for n in range(60) if n % 10 < 9]
    columns = columns_of(*traces)
    assert columns.forwards is None
    assert "More forwards" not in said(rule, *traces).cause


@pytest.mark.parametrize("rule", RULES[:2], ids=lambda rule: rule.meta.id)
def test_steps_that_were_kept_because_they_are_slow_are_no_change(rule: Rule) -> None:
    slow = every(5, 60)
    traces = [rolling(rank(n, 1000, computing=slow), lambda n: slow(n) > 0) for n in range(2)]
    kept = [one.step for one in traces[0].steps if one.step < 900]
    assert sum(slow(n) > 0 for n in kept) > len(kept) / 2
    assert said(rule, *traces).status is Status.PASS
