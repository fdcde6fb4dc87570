"""Rules on what changes from step to step: step-time-change, -drift and periodic-slow-step."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.series import change_of, drift_of
from dsprof.analysis.run.step_columns import StepColumns, step_columns
from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication import communication_bound_step
from dsprof.rules.rule import Rule
from dsprof.rules.runner import judge
from dsprof.rules.steps import periodic_slow_step, step_time_change, step_time_drift
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import RollUp
from tests.factories.trace import (
    assert_reached_at,
    counters,
    engine,
    header,
    rank_trace,
    said,
    span,
    step,
    summary,
    sync,
)

RULES = [step_time_change.RULE, step_time_drift.RULE, periodic_slow_step.RULE]
NOISE = np.random.default_rng(3).normal(0, 1, 1000)
Extra = Callable[[int], float]


def nothing(number: int) -> float:
    return 0


def rank(
    number: int = 0,
    steps: int = 60,
    computing: Extra = nothing,
    between: Extra = nothing,
    waiting: Extra = nothing,
    calls: Extra = nothing,
    **fields: Any,
) -> RankTrace:
    """Steps of 100 ms: `between` ms, forward of 80 ms and more, a wait of 20 ms and more."""
    at, made = 0.0, {"steps": [], "spans": [], "comm": []}
    for n in range(steps):
        begin = at + between(n)
        end = begin + 80 + NOISE[n] + computing(n)
        held = 20 + waiting(n)
        made["spans"].append(span("forward", begin, end + held, n))
        made["comm"].append(sync("all_reduce", end, held, seq=10 * n, step=n))
        made["comm"] += [sync("all_reduce", end, 0, seq=10 * n + k, step=n)
                         for k in range(1, 1 + round(calls(n)))]  # fmt: skip
        made["steps"].append(step(n, at, end + held))
        at = end + held
    return rank_trace(number, engine=engine(), **made, **fields)


def ranks(steps: int = 60, **extra: Extra) -> list[RankTrace]:
    return [rank(n, steps, **extra) for n in range(2)]


def columns_of(*traces: RankTrace) -> StepColumns:
    steps = summary(*traces)[Steps]
    return step_columns(steps, steps.even)


def rolling(trace: RankTrace, kept: Callable[[int], bool]) -> RankTrace:
    """Keep the newest 100 steps, every eighth, and others, as a rolling recording does."""
    trace.newest_from = len(trace.steps) - 100
    trace.steps = [
        one
        for one in trace.steps
        if one.step >= trace.newest_from or one.step % 8 == 0 or kept(one.step)
    ]
    return trace


def summed(ranks: int, working: Callable[[int, int], float], late: float = 0) -> list[RankTrace]:
    """Sums of 60 spans of 10 steps, and details of the newest: `working` ms of a rank in a span.

    The others wait for the rank that works longest, and all for `late` ms more in spans 20 to 39.
    """
    traces = [partial(rank(number, 600), range(560, 600)) for number in range(ranks)]
    for number, trace in enumerate(traces):
        trace.newest_from = 560
        for at in range(60):
            longest = max(working(other, at) for other in range(ranks))
            step_ns = round((100 + longest + late * (20 <= at < 40)) * 1e6)
            span = RollUp(
                begin_s=10 * at,
                length_s=10,
                first_step=10 * at,
                steps=10,
                total_ns=10 * step_ns,
                fastest_ns=step_ns - 10**6,
                slowest_ns=step_ns + 10**6,
                slowest_step=10 * at + 5,
                blocked_ns=10 * (step_ns - round((80 + working(number, at)) * 1e6)),
                nbytes=100 << 20,
            )
            trace.rollups[span.span] = span
    return traces


def from_step(first: int, ms: float) -> Extra:
    return lambda n: ms * (n >= first)


def every(period: int, ms: float) -> Extra:
    return lambda n: ms * (n % period == period - 1)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.meta.id)
def test_steady_steps_pass(rule: Rule) -> None:
    assert said(rule, *ranks()).status is Status.PASS


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


def test_sums_of_steady_steps_pass() -> None:
    assert said(step_time_change.RULE, *summed(4, lambda _, at: 2 * (at % 2))).status is Status.PASS


@pytest.mark.parametrize(
    ("working", "late", "slow_ranks", "cause"),
    [
        (lambda n, at: 20 * (n in (4, 5) and 20 <= at < 40), 0, (4, 5), "Ranks 4-5 work longest"),
        (lambda n, at: 20 * (n == 4 and 20 <= at < 40), 0, (4,), "Rank 4 works longest"),
        (lambda _, at: 20 * (20 <= at < 40), 0, (), "time not blocked in communication"),
        (lambda *_: 0, 20, (), "waits for communication"),
    ],
)
def test_sums_show_a_slow_stretch_without_details(
    working: Callable[[int, int], float], late: float, slow_ranks: tuple[int, ...], cause: str
) -> None:
    """The newest steps, of which there are details, are as fast as the first ones."""
    finding = said(step_time_change.RULE, *summed(8, working, late))
    assert (finding.status, finding.ranks) == (Status.FAIL, slow_ranks)
    assert finding.problem == "Steps take 20 % longer from about step 205 to 395"
    assert cause in finding.cause


def test_sums_name_the_host_of_ranks_that_are_slow_in_turn() -> None:
    """All ranks of node1 are slow; a span has the two that are so by a little more."""
    slow = lambda n, at: n > 3 and 20 <= at < 40  # noqa: E731
    traces = summed(8, lambda n, at: slow(n, at) * (40 + (n + at) % 3 / 10 - (n == 7)))
    for number, trace in enumerate(traces):
        trace.header = header(number, 8, host=f"node{number // 4}", boot_id=f"b{number // 4}")
    finding = said(step_time_change.RULE, *traces)
    assert (finding.status, finding.ranks) == (Status.FAIL, (4, 5, 6))
    assert "They all run on node1." in finding.cause
    assert finding.cause.endswith("rank 7 of that host may be as slow.")


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_sums_show_a_rank_that_delays_steps_where_no_step_has_details() -> None:
    traces = summed(8, lambda n, at: 200 * (n == 3 and at in range(20, 23)))
    for trace in traces:
        trace.steps = []
    assert said(periodic_slow_step.RULE, *traces).ranks == (3,)


def test_sums_do_not_show_what_costs_little_of_the_run() -> None:
    traces = summed(8, lambda _, at: 20 * (20 <= at < 40))
    assert said(step_time_change.RULE, *traces, run_share=0.07).status is Status.PASS


def test_a_rank_that_delays_few_spans_is_left_to_the_rule_that_names_it() -> None:
    traces = summed(8, lambda n, at: 20 * (n == 4 and 20 <= at < 32))
    assert said(step_time_change.RULE, *traces).status is Status.PASS
    assert said(periodic_slow_step.RULE, *traces).ranks == (4,)


def test_sums_of_other_work_are_no_problem() -> None:
    traces = summed(8, lambda _, at: 20 * (at >= 30))
    for trace in traces:
        for one in trace.rollups.values():
            one.nbytes *= 1 + (one.begin_s >= 300)
    assert said(step_time_change.RULE, *traces).status is Status.INFO


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.meta.id)
def test_few_steps_tell_nothing(rule: Rule) -> None:
    few = [rank(n, 8) for n in range(2)]
    assert said(rule, *few).status is Status.UNKNOWN
    assert said(rule, rank_trace()).status is Status.UNKNOWN


def test_a_rank_that_holds_up_the_next_step_is_named() -> None:
    """Rank 0 writes a checkpoint at the end of every tenth step; the others wait in the next."""
    alone = rank(0, computing=every(10, 400))
    others = [rank(n, waiting=lambda n: 400 * (n > 0 and n % 10 == 0)) for n in range(1, 8)]
    finding = said(periodic_slow_step.RULE, alone, *others)
    assert (finding.status, finding.ranks) == (Status.FAIL, (0,))
    assert finding.cause.startswith("The extra time is on rank 0, at the end of the step before;")


@pytest.mark.parametrize(("first", "last"), [(30, 44), (30, 79), (15, 99)])
def test_a_slow_stretch_that_ends_is_named_with_its_end(first: int, last: int) -> None:
    """Another program on the host of rank 0 comes and goes."""
    slow = rank(0, 120, computing=lambda n: 40 * (first <= n <= last))
    other = rank(1, 120, waiting=lambda n: 40 * (first <= n <= last))
    finding = said(step_time_change.RULE, slow, other)
    assert (finding.status, finding.ranks) == (Status.FAIL, (0,))
    assert finding.problem == f"Steps take 40 % longer from step {first} to {last}"
    assert finding.steps == (first,)


def in_spells(*spells: range) -> Extra:
    return lambda n: 40 * any(n in spell for spell in spells)


def test_slow_stretches_of_one_cause_are_one_finding() -> None:
    """Of 30 steps after warm-up, 16 are slow; seen as one change of level they are not."""
    traces = ranks(32, computing=in_spells(range(5, 13), range(20, 28)))
    finding = said(step_time_change.RULE, *traces)
    assert (finding.status, finding.steps) == (Status.FAIL, (5, 20))
    assert finding.problem == "Steps take 40 % longer from step 5 to 12 and 20 to 27"
    assert finding.title == "Steps are slower for a while"
    assert finding.fix == "Check what happened at steps 5 and 20"
    assert "forward, backward and optimizer step, on all ranks" in finding.cause
    assert said(periodic_slow_step.RULE, *traces).status is Status.PASS


def test_a_checkpoint_is_periodic_also_beside_slow_stretches() -> None:
    spells = in_spells(range(52, 60), range(92, 100))
    traces = ranks(120, computing=spells, between=every(10, 60))
    finding = said(periodic_slow_step.RULE, *traces)
    assert finding.summary.startswith("Every 10 steps, first in step 9, a step takes 60")
    assert said(step_time_change.RULE, *traces).status is Status.FAIL


def test_slow_stretches_of_other_causes_are_findings_of_their_own() -> None:
    one, both = range(20, 32), range(60, 75)
    traces = [
        rank(0, 100, computing=in_spells(one, both)),
        rank(1, 100, computing=in_spells(both), waiting=in_spells(one)),
    ]
    found = judge(summary(*traces), [step_time_change.RULE])
    assert [(finding.ranks, finding.problem) for finding in found] == [
        ((0,), "Steps take 40 % longer from step 20 to 31"),
        ((), "Steps take 40 % longer from step 60 to 74"),
    ]


def test_stretches_of_many_ranks_in_turn_are_one_finding() -> None:
    """A finding for each rank would hide all other problems."""
    spells = [range(at, at + 8) for at in range(10, 170, 20)]
    mine = [in_spells(spells[number]) for number in range(8)]
    slow = in_spells(*spells)
    finding = said(
        step_time_change.RULE,
        *(
            rank(number, 180, computing=own, waiting=lambda n, own=own: slow(n) - own(n))
            for number, own in enumerate(mine)
        ),
    )
    assert (finding.status, finding.ranks, len(finding.steps)) == (Status.FAIL, (), 8)
    assert finding.problem == "Steps take 40 % longer in 8 stretches from step 10 on"
    assert "only a few of ranks 0-7 work longer" in finding.cause


def test_sums_show_stretches_of_ranks_in_turn() -> None:
    slow = {at: n for n in range(4) for at in range(14 * n + 5, 14 * n + 11)}
    finding = said(step_time_change.RULE, *summed(8, lambda n, at: 20 * (slow.get(at) == n)))
    assert (finding.status, finding.ranks) == (Status.FAIL, ())
    assert "only a few of ranks 0-3 work longer" in finding.cause


def test_waits_of_slow_stretches_are_explained_by_their_share_of_the_run() -> None:
    waiting = in_spells(range(20, 32), range(60, 80))
    finding = said(step_time_change.RULE, *ranks(100, waiting=waiting))
    assert finding.explains_ms == pytest.approx(40 * 32 / 98, rel=0.05)
    assert finding.problem.endswith("from step 20 to 31 and 60 to 79")


def test_sums_show_several_slow_stretches() -> None:
    slow = (*range(10, 20), *range(40, 50))
    finding = said(
        step_time_change.RULE, *summed(8, lambda n, at: 20 * (n in (4, 5) and at in slow))
    )
    assert (finding.status, finding.ranks) == (Status.FAIL, (4, 5))
    assert finding.problem == "Steps take 20 % longer from about step 105 to 195 and 405 to 495"


def test_the_step_from_which_on_steps_are_longer_is_named() -> None:
    finding = said(step_time_change.RULE, *ranks(computing=from_step(30, 40)))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert "From step 30 on a step takes 140" in finding.summary
    assert finding.title == "Steps become slower at one moment"
    assert "forward, backward and optimizer step, on all ranks" in finding.cause
    assert said(step_time_drift.RULE, *ranks(computing=from_step(30, 40))).status is Status.PASS


def test_a_rank_that_gets_slower_is_named_and_not_those_that_wait() -> None:
    slow, other = rank(0, computing=from_step(30, 40)), rank(1, waiting=from_step(30, 40))
    finding = said(step_time_change.RULE, slow, other)
    assert (finding.status, finding.ranks) == (Status.FAIL, (0,))
    assert "Only rank 0 got slower" in finding.cause
    assert finding.fix == "Check what happened at step 30 on rank 0"


def test_a_network_that_slows_down_at_a_step_explains_the_waits_from_there_on() -> None:
    """58 steps are measured, 30 of them with 40 ms more in the collective of 20 ms."""
    traces = ranks(waiting=from_step(30, 40))
    finding = said(step_time_change.RULE, *traces)
    assert finding.ranks == ()
    assert finding.explains_ms == pytest.approx(40 * 30 / 58, rel=0.05)
    assert "processor time" in finding.action
    both = judge(summary(*traces), [communication_bound_step.RULE, step_time_change.RULE])
    assert [(one.rule, one.status) for one in both] == [
        ("step-time-change", Status.FAIL),
        ("communication-bound-step", Status.NOT_APPLICABLE),
    ]
    assert said(step_time_change.RULE, *ranks(computing=from_step(30, 40))).explains_ms == 0


def test_a_link_is_blamed_only_between_hosts_or_devices() -> None:
    """Ranks on CPUs of one host all send over its loopback."""
    one, other = ranks(waiting=from_step(30, 40))
    other.header = header(1, 2, host="b", boot_id="b")
    finding = said(step_time_change.RULE, one, other)
    assert "a link or an adapter that lost speed" in finding.action


def partial(trace: RankTrace, kept: range) -> RankTrace:
    """A rank whose record holds only some steps."""
    trace.steps = [one for one in trace.steps if one.step in kept]
    return trace


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.meta.id)
@pytest.mark.parametrize("kept", [range(30), range(30, 60), range(2, 9)])
def test_a_rank_recorded_for_a_part_of_the_run_changes_no_pace(rule: Rule, kept: range) -> None:
    """Its own steps are longer, so the mean over the ranks that are there changes with it."""
    slower = partial(rank(2, computing=lambda n: 90), kept)
    assert said(rule, *ranks(), slower).status is Status.PASS


def test_pace_changes_if_it_does_so_on_the_ranks_recorded_throughout() -> None:
    slow, other = rank(0, computing=from_step(30, 40)), rank(1, waiting=from_step(30, 40))
    gone = partial(rank(2), range(20))
    finding = said(step_time_change.RULE, slow, other, gone)
    assert (finding.status, finding.ranks) == (Status.FAIL, (0,))
    assert "Rank 0 got slower; whether others did is unknown." in finding.cause
    finding = said(step_time_change.RULE, *ranks(computing=from_step(30, 40)), gone)
    assert "on all ranks but rank 2." in finding.cause
    assert (
        "on all ranks but rank 2."
        in said(step_time_drift.RULE, *ranks(computing=lambda n: n), gone).cause
    )
    assert (
        "on all ranks but rank 2:"
        in said(periodic_slow_step.RULE, *ranks(computing=every(5, 60)), gone).cause
    )


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.meta.id)
def test_of_ranks_that_relieve_each_other_nothing_is_said(rule: Rule) -> None:
    early = [partial(rank(n, computing=lambda n: 90), range(30)) for n in range(2)]
    late = [partial(rank(n), range(30, 60)) for n in range(2, 4)]
    finding = said(rule, *early, *late)
    assert finding.status is Status.UNKNOWN
    assert finding.summary == "Fewer than half of the ranks recorded the same steps."


def test_other_work_is_information() -> None:
    longer = ranks(computing=from_step(30, 40), calls=from_step(30, 3))
    finding = said(step_time_change.RULE, *longer)
    assert finding.status is Status.INFO
    assert "collectives" in finding.summary


@pytest.mark.parametrize(("more", "status"), [(1, Status.FAIL), (2, Status.INFO)])
def test_one_call_more_in_twenty_is_the_same_work_and_two_are_not(
    more: int, status: Status
) -> None:
    calls = from_step(30, more)
    longer = ranks(computing=from_step(30, 40), calls=lambda n: 19 + calls(n))
    assert said(step_time_change.RULE, *longer).status is status


def test_steps_that_get_shorter_are_information() -> None:
    finding = said(step_time_change.RULE, *ranks(computing=lambda n: 40 * (n < 30)))
    assert finding.status is Status.INFO
    assert "faster" in finding.title


@pytest.mark.parametrize("first", [4, 57])
def test_a_change_at_the_very_ends_is_none(first: int) -> None:
    assert said(step_time_change.RULE, *ranks(computing=from_step(first, 40))).status is Status.PASS


def test_a_small_change_is_none() -> None:
    assert said(step_time_change.RULE, *ranks(computing=from_step(30, 8))).status is Status.PASS


def test_steps_that_grow_are_drift_and_no_change() -> None:
    growing = ranks(between=lambda n: n)
    finding = said(step_time_drift.RULE, *growing)
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert "time outside all phases" in finding.cause
    assert "in 58 steps" in finding.summary
    assert said(step_time_change.RULE, *growing).status is Status.PASS


def test_of_steps_that_grow_on_all_ranks_the_design_is_asked_first() -> None:
    """No count shows that sequences get longer."""
    finding = said(step_time_drift.RULE, *ranks(computing=lambda n: n))
    assert finding.cause.startswith("Micro-steps, collectives and bytes per step did not change.")
    assert finding.action.startswith("Check whether the program makes batches or sequences longer")


def test_drift_of_one_rank_names_it() -> None:
    finding = said(
        step_time_drift.RULE, rank(0, computing=lambda n: n), rank(1, waiting=lambda n: n)
    )
    assert (finding.status, finding.ranks) == (Status.FAIL, (0,))


def test_a_rank_that_slows_after_a_while_drifts_and_does_not_change_at_one_moment() -> None:
    """As by heat: the rise begins at step 20, which leaves half of it below the middle."""
    more = lambda n: 0.5 * max(n - 20, 0)  # noqa: E731
    traces = [rank(0, 150, computing=more), rank(1, 150, waiting=more)]
    finding = said(step_time_drift.RULE, *traces)
    assert (finding.status, finding.ranks) == (Status.FAIL, (0,))
    assert finding.fix == "Compare temperature and clock of rank 0 with the others"
    assert said(step_time_change.RULE, *traces).status is Status.PASS


def test_more_and_more_work_is_information() -> None:
    growing = ranks(computing=lambda n: n, calls=lambda n: n // 10)
    assert said(step_time_drift.RULE, *growing).status is Status.INFO


def test_steps_that_get_faster_and_faster_pass() -> None:
    assert said(step_time_drift.RULE, *ranks(computing=lambda n: 60 - n)).status is Status.PASS


def test_a_checkpoint_every_ten_steps_is_information_with_its_cost() -> None:
    finding = said(periodic_slow_step.RULE, *ranks(between=every(10, 90)))
    assert finding.status is Status.INFO
    assert "Every 10 steps, first in step 9" in finding.summary
    assert "a checkpoint" in finding.cause
    assert "9." in finding.summary.rsplit(":", 1)[1]  # 6 of 58 steps, 90 ms each


def in_steps_of_its_own(count: int, slow: Callable[[int, int], bool]) -> list[RankTrace]:
    """Ranks that compute 60 ms longer in some steps, for which the others wait."""
    late = [lambda n, rank=rank: 60 * slow(rank, n) for rank in range(count)]
    longest = lambda n: max(one(n) for one in late)  # noqa: E731
    return [
        rank(number, 96, computing=mine, waiting=lambda n, mine=mine: longest(n) - mine(n))
        for number, mine in enumerate(late)
    ]


def test_ranks_with_a_period_each_are_named_with_it() -> None:
    """As of garbage collections: in half of the steps another rank is late."""
    traces = in_steps_of_its_own(6, lambda rank, n: (n + 2 * rank) % 12 == 11)
    finding = said(periodic_slow_step.RULE, *traces)
    assert (finding.status, finding.ranks) == (Status.FAIL, ())
    assert finding.problem == "Each of 6 ranks works 59.9 ms longer every 12 steps, in turn"
    assert "in steps of its own, and the others wait: 29.9 ms per step" in finding.summary
    assert "gc.collect() on all ranks in the same step" in finding.action
    assert [row[1] for row in finding.evidence[0].rows] == [12] * 6


def test_periods_of_ranks_that_meet_in_one_of_the_run_are_named_beside_those_of_all() -> None:
    """Every 4 steps another rank collects garbage; every 25 all write a checkpoint."""
    traces = in_steps_of_its_own(6, lambda rank, n: n % 24 == 4 * rank + 3)
    assert said(periodic_slow_step.RULE, *traces).problem.startswith("Each of 6 ranks works 59")
    traces = in_steps_of_its_own(6, lambda rank, n: n % 24 == 4 * rank + 3 or n % 25 == 24)
    found = [*judge(summary(*traces), [periodic_slow_step.RULE])]
    assert [" ".join(one.problem.split()[:3]) for one in found] == ["Each of 6", "Every 25 steps"]


def test_half_of_the_ranks_that_evaluate_in_the_same_steps_do_not_take_turns() -> None:
    traces = in_steps_of_its_own(6, lambda rank, n: rank < 3 and n % 12 == 11)
    finding = said(periodic_slow_step.RULE, *traces)
    assert finding.problem.startswith("Every 12 steps one takes")
    assert finding.ranks == (0, 1, 2)


def test_ranks_with_other_periods_are_named_with_the_range() -> None:
    traces = in_steps_of_its_own(6, lambda rank, n: n % (12 + rank) == 2 * rank)
    assert "longer every 12 to 17 steps" in said(periodic_slow_step.RULE, *traces).problem


def test_slow_steps_of_other_ranks_each_time_are_said_to_be() -> None:
    """Every 8 steps a rank compiles again, each once."""
    traces = in_steps_of_its_own(11, lambda rank, n: n == 8 * rank + 7)
    finding = said(periodic_slow_step.RULE, *traces)
    assert (finding.status, finding.ranks) == (Status.INFO, ())
    assert "only a few of ranks 0-10 work longer, not always the same" in finding.cause
    assert finding.problem.startswith("Every 8 steps one takes")


def test_each_of_two_periods_is_named_with_what_it_adds() -> None:
    """A checkpoint every 20 steps, beside a garbage collection every 5."""
    traces = ranks(160, computing=every(5, 60), between=every(20, 400))
    found = [*judge(summary(*traces), [periodic_slow_step.RULE])]
    assert [(one.status, one.problem.split(" one")[0]) for one in found] == [
        (Status.FAIL, "Every 5 steps"),
        (Status.INFO, "Every 20 steps"),
    ]
    assert "garbage collector" in found[0].cause
    assert "a checkpoint" in found[1].cause


def test_the_first_slow_steps_are_listed_below_the_median_of_the_others() -> None:
    finding = said(periodic_slow_step.RULE, *ranks(between=every(3, 90)))
    usual, *slow = finding.evidence[0].rows
    assert usual[0] == "median of the others"
    assert [row[0] for row in slow] == list(range(2, 2 + 3 * len(slow), 3))
    assert len(slow) == len(finding.steps) == 16
    assert all(row[1] > usual[1] + 80_000_000 for row in slow)


def test_what_holds_up_the_phases_is_a_fault() -> None:
    finding = said(periodic_slow_step.RULE, *ranks(computing=every(5, 60)))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert "garbage collector" in finding.cause


def test_thresholds_of_a_change_are_reached_at_their_value() -> None:
    changed = ranks(computing=from_step(30, 40))
    change = change_of(columns_of(*changed).total_ns)
    assert change is not None
    more_ns = change.after - change.before
    share = more_ns / change.before
    rule = step_time_change.RULE
    assert_reached_at(rule, *changed, steps=58, least_side=28, severe_share=share)
    for name, value in (("share", share), ("sigmas", more_ns / change.scatter)):
        low, high = ({name: value * (1 + part)} for part in (-1e-9, 1e-9))
        assert said(rule, *changed, **low).status is Status.FAIL, name
        assert said(rule, *changed, **high).status is Status.PASS, name
    assert said(rule, *changed, chance=change.p).status is Status.FAIL
    assert said(rule, *changed, chance=change.p / 2).status is Status.PASS


def test_thresholds_of_a_drift_are_reached_at_their_value() -> None:
    growing = ranks(between=lambda n: n)
    drift = drift_of(columns_of(*growing).total_ns)
    assert drift is not None
    more_ns = drift.end - drift.start
    at = {"severe_share": more_ns / drift.start, "z": drift.z, "steps": 58}
    assert_reached_at(step_time_drift.RULE, *growing, **at)
    for name, value in (("share", more_ns / drift.start), ("sigmas", more_ns / drift.scatter)):
        low, high = ({name: value * (1 + part)} for part in (-1e-9, 1e-9))
        assert said(step_time_drift.RULE, *growing, **low).status is Status.FAIL, name
        assert said(step_time_drift.RULE, *growing, **high).status is Status.PASS, name


def test_thresholds_of_slow_steps_are_reached_at_their_value() -> None:
    slow = ranks(computing=every(5, 60))
    assert_reached_at(periodic_slow_step.RULE, *slow, steps=58, slow_steps=12, part_share=1.0)
    # 12 of 58 steps take 60 ms longer: 720 of 58 * 100 + 720.
    for name in ("fail_share", "cost_share"):
        below, above = (said(periodic_slow_step.RULE, *slow, **{name: share})
                        for share in (0.109, 0.112))  # fmt: skip
        assert (below.status, above.status is Status.FAIL) == (Status.FAIL, False), name


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
    changed = said(step_time_change.RULE, *ranks(computing=from_step(30, 40)))
    assert ms(changed.evidence[0].rows) == [
        ("whole step", 100, 140),
        ("forward, backward and optimizer step", 80, 120),
        ("waits for communication", 20, 20),
        ("time outside all phases", 0, 0),
    ]
    growing = said(step_time_drift.RULE, *ranks(between=lambda n: 4 * n))
    assert ms(growing.evidence[0].rows) == [
        ("whole step", 140, 200, 250, 310),
        ("forward, backward and optimizer step", 80, 80, 80, 80),
        ("waits for communication", 20, 20, 20, 20),
        ("time outside all phases", 40, 100, 150, 210),
    ]


@pytest.mark.parametrize(
    ("extra", "where"),
    [
        ({"waiting": every(10, 90)}, "exposed communication, on all ranks"),
        ({"between": every(10, 90)}, "outside forward, backward and step, on all ranks"),
        ({"computing": every(10, 90)}, "forward, backward or optimizer step, on all ranks"),
        (
            {"waiting": every(10, 40), "between": every(10, 40), "computing": every(10, 40)},
            "The slower part of the step is unknown",
        ),
    ],
    ids=["waits", "between", "computing", "everywhere"],
)
def test_the_part_that_takes_longer_is_the_cause(extra: dict[str, Extra], where: str) -> None:
    assert where in said(periodic_slow_step.RULE, *ranks(**extra)).cause


def test_steps_of_two_iterations_are_no_fault_of_the_slower_rank() -> None:
    """As when all ranks skip an optimizer step every ten iterations, and rank 0 is slower."""
    traces = [rank(0, computing=every(10, 90)), rank(1, waiting=every(10, 90))]
    assert said(periodic_slow_step.RULE, *traces).ranks == (0,)
    for trace in traces:
        for one in trace.steps:
            one.micro_steps = 2 if one.step % 10 == 9 else 1
    finding = said(periodic_slow_step.RULE, *traces)
    assert (finding.status, finding.ranks) == (Status.INFO, ())
    assert "skipped an optimizer step" in finding.cause


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


@pytest.mark.parametrize(
    ("part", "cause"),
    [
        ("waiting", "The longer part is waits for communication; "),
        ("between", "The longer part is time outside all phases; "),
    ],
)
def test_slow_steps_without_a_period_have_their_part_as_the_cause(part: str, cause: str) -> None:
    extra = {part: lambda n: 90 * (n in (9, 21, 28, 50))}
    finding = said(periodic_slow_step.RULE, *ranks(**extra))
    assert "without a period" in finding.summary
    assert finding.cause == f"{cause}the slow steps follow no period."


@pytest.mark.parametrize(("more", "status"), [(200, Status.INFO), (300, Status.FAIL)])
def test_what_all_ranks_do_outside_the_phases_fails_if_it_takes_a_fifth_of_the_run(
    more: int, status: Status
) -> None:
    """Of ten steps of 100 ms: 200 of 1,200 ms, and 300 of 1,300."""
    assert said(periodic_slow_step.RULE, *ranks(between=every(10, more))).status is status


def test_an_evaluation_by_the_engine_is_information() -> None:
    traces = ranks(computing=every(10, 90))
    for trace in traces:
        slow = [one for one in trace.spans if one.step % 10 == 9]
        trace.spans += [span("forward", one.start_ns / 1e6, one.start_ns / 1e6 + 1, one.step)
                        for one in slow]  # fmt: skip
    finding = said(periodic_slow_step.RULE, *traces)
    assert finding.status is Status.INFO
    assert "an evaluation" in finding.cause


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


def test_what_one_rank_does_alone_is_its_fault() -> None:
    alone = rank(0, between=every(10, 90)), rank(1, waiting=every(10, 90))
    finding = said(periodic_slow_step.RULE, *alone)
    assert (finding.status, finding.ranks) == (Status.FAIL, (0,))


@pytest.mark.parametrize("rule", RULES[:2], ids=lambda rule: rule.meta.id)
def test_steps_that_were_kept_because_they_are_slow_are_no_change(rule: Rule) -> None:
    slow = every(5, 60)
    traces = [rolling(rank(n, 1000, computing=slow), lambda n: slow(n) > 0) for n in range(2)]
    kept = [one.step for one in traces[0].steps if one.step < 900]
    assert sum(slow(n) > 0 for n in kept) > len(kept) / 2
    assert said(rule, *traces).status is Status.PASS


def test_a_period_is_looked_for_where_no_step_is_left_out() -> None:
    slow = every(5, 60)
    traces = [rolling(rank(n, 1000, computing=slow), lambda n: slow(n) > 0) for n in range(2)]
    finding = said(periodic_slow_step.RULE, *traces)
    assert "Every 5 steps, first in step 904, " in finding.summary


@pytest.mark.parametrize(("kept", "named"), [(range(0), 504), (range(496, 504), 500)])
def test_a_change_is_found_in_steps_kept_by_their_number(kept: range, named: int) -> None:
    changed = ranks(steps=1000, computing=from_step(500, 40))
    finding = said(step_time_change.RULE, *(rolling(one, kept.__contains__) for one in changed))
    assert (finding.status, finding.steps) == (Status.FAIL, (named,))
    assert f"From step {named} on a step takes 140" in finding.summary


def test_a_change_in_the_newest_steps_is_found() -> None:
    changed = ranks(steps=1000, computing=from_step(950, 40))
    finding = said(step_time_change.RULE, *(rolling(one, lambda _: False) for one in changed))
    assert (finding.status, finding.steps) == (Status.FAIL, (950,))


def test_a_drift_is_found_over_the_whole_run() -> None:
    growing = [rolling(one, lambda _: False) for one in ranks(steps=1000, between=lambda n: n / 20)]
    finding = said(step_time_drift.RULE, *growing)
    assert "in 977 steps" in finding.summary
    assert said(step_time_change.RULE, *growing).status is Status.PASS


def test_a_period_shows_among_steps_that_are_less_slow() -> None:
    wild, longer = {12, 25, 31, 46, 47}, every(10, 90)
    finding = said(periodic_slow_step.RULE, *ranks(between=lambda n: longer(n) + 30 * (n in wild)))
    assert "Every 10 steps, first in step 9" in finding.summary


def test_slow_steps_without_a_period_are_a_remark() -> None:
    wild = {7, 8, 29, 50}
    finding = said(periodic_slow_step.RULE, *ranks(between=lambda n: 90 * (n in wild)))
    assert (finding.status, finding.confidence) == (Status.INFO, "low")
    assert "4 of 58 steps" in finding.summary


def test_slow_steps_that_cost_nothing_are_not_spoken_of() -> None:
    finding = said(periodic_slow_step.RULE, *ranks(between=lambda n: 30 * (n == 30)))
    assert finding.status is Status.PASS


def test_one_wild_step_is_not_spoken_of() -> None:
    finding = said(periodic_slow_step.RULE, *ranks(between=lambda n: 500 * (n == 30)))
    assert finding.status is Status.PASS
