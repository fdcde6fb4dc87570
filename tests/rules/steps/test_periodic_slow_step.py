"""Single slow steps: in a period, of ranks in turn, or without one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from msgspec.structs import replace

from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.communication_bound_step import CommunicationBoundStep
from dsprof.rules.communication.late_rank import LateRank
from dsprof.rules.runner import judge
from dsprof.rules.steps.periodic_slow_step import PeriodicSlowStep
from dsprof.rules.steps.step_time_change import StepTimeChange
from dsprof.trace.rank_trace import RankTrace
from tests.factories.trace import MS, assert_reached_at, rank_trace, said, span, summary, sync
from tests.rules.steps.stepwise import Extra, every, in_spells, rank, ranks, rolling, summed


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_sums_show_a_rank_that_delays_steps_where_no_step_has_details() -> None:
    traces = summed(8, lambda n, at: 200 * (n == 3 and at in range(20, 23)))
    for trace in traces:
        trace.steps = []
    assert said(PeriodicSlowStep(), *traces).ranks == (3,)


def test_a_rank_that_holds_up_the_next_step_is_named() -> None:
    """Rank 0 writes a checkpoint at the end of every tenth step; the others wait in the next."""
    alone = rank(0, computing=every(10, 400))
    others = [rank(n, waiting=lambda n: 400 * (n > 0 and n % 10 == 0)) for n in range(1, 8)]
    finding = said(PeriodicSlowStep(), alone, *others)
    assert (finding.status, finding.ranks) == (Status.FAIL, (0,))
    assert finding.cause.startswith("The extra time is on rank 0, at the end of the step before;")


def test_a_checkpoint_is_periodic_also_beside_slow_stretches() -> None:
    spells = in_spells(range(52, 60), range(92, 100))
    traces = ranks(120, computing=spells, between=every(10, 60))
    finding = said(PeriodicSlowStep(), *traces)
    assert finding.summary.startswith("Every 10 steps, first in step 9, a step takes 60")
    assert said(StepTimeChange(), *traces).status is Status.FAIL


def test_a_checkpoint_every_ten_steps_is_information_with_its_cost() -> None:
    finding = said(PeriodicSlowStep(), *ranks(between=every(10, 90)))
    assert finding.status is Status.INFO
    assert "Every 10 steps, first in step 9" in finding.summary
    assert "a checkpoint" in finding.cause
    assert "9." in finding.summary.rsplit(":", 1)[1]  # 6 of 58 steps, 90 ms each


def in_phases(trace: RankTrace, longer: str = "step") -> RankTrace:
    """The same work in phases of 20 ms, but for one that takes the rest."""
    for whole in [*trace.spans]:
        length_ns = whole.end_ns - whole.start_ns
        ends = (
            [20 * MS, 40 * MS] if longer == "step" else [length_ns - 40 * MS, length_ns - 20 * MS]
        )
        places = [whole.start_ns, *(whole.start_ns + ns for ns in ends), whole.end_ns]
        trace.spans += [
            replace(whole, name=name, start_ns=start, end_ns=end)
            for name, (start, end) in zip(
                ("forward", "backward", "step"), pairwise(places), strict=True
            )
        ]
        trace.spans.remove(whole)
    return trace


def test_an_optimizer_that_does_more_every_ten_steps_is_the_cause() -> None:
    """As Shampoo does, which computes its preconditioners anew."""
    finding = said(PeriodicSlowStep(), *map(in_phases, ranks(computing=every(10, 90))))
    assert finding.status is Status.FAIL
    assert finding.cause.startswith("The extra time is in the optimizer step, on all ranks: ")
    assert "`precondition_frequency`" in finding.action


def test_the_optimizer_is_the_cause_only_where_its_step_takes_longer_on_all_ranks() -> None:
    traces = [in_phases(trace, "forward") for trace in ranks(computing=every(10, 90))]
    for one in traces[0].spans:
        one.end_ns += MS * (one.name == "step" and one.step % 10 == 9)
    assert "forward, backward or optimizer" in said(PeriodicSlowStep(), *traces).cause
    most = rank(0, computing=every(10, 90)), rank(1, 60, every(10, 40), waiting=every(10, 50))
    finding = said(PeriodicSlowStep(), *map(in_phases, most))
    assert finding.cause.startswith("The extra time is on rank 0")


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
    finding = said(PeriodicSlowStep(), *traces)
    assert (finding.status, finding.ranks) == (Status.FAIL, ())
    assert finding.problem == "Each of 6 ranks works 59.9 ms longer every 12 steps, in turn"
    assert "in steps of its own, and the others wait: 29.9 ms per step" in finding.summary
    assert "gc.collect() on all ranks in the same step" in finding.action
    assert [row[1] for row in finding.evidence[0].rows] == [12] * 6


def test_periods_of_ranks_that_meet_in_one_of_the_run_are_named_beside_those_of_all() -> None:
    """Every 4 steps another rank collects garbage; every 25 all write a checkpoint."""
    traces = in_steps_of_its_own(6, lambda rank, n: n % 24 == 4 * rank + 3)
    assert said(PeriodicSlowStep(), *traces).problem.startswith("Each of 6 ranks works 59")
    traces = in_steps_of_its_own(6, lambda rank, n: n % 24 == 4 * rank + 3 or n % 25 == 24)
    found = [*judge(summary(*traces), [PeriodicSlowStep()])]
    assert [" ".join(one.problem.split()[:3]) for one in found] == ["Each of 6", "Every 25 steps"]


def test_half_of_the_ranks_that_evaluate_in_the_same_steps_do_not_take_turns() -> None:
    traces = in_steps_of_its_own(6, lambda rank, n: rank < 3 and n % 12 == 11)
    finding = said(PeriodicSlowStep(), *traces)
    assert finding.problem.startswith("Every 12 steps one takes")
    assert finding.ranks == (0, 1, 2)


def test_ranks_with_other_periods_are_named_with_the_range() -> None:
    traces = in_steps_of_its_own(6, lambda rank, n: n % (12 + rank) == 2 * rank)
    assert "longer every 12 to 17 steps" in said(PeriodicSlowStep(), *traces).problem


def test_slow_steps_of_other_ranks_each_time_are_said_to_be() -> None:
    """Every 8 steps a rank compiles again, each once."""
    traces = in_steps_of_its_own(11, lambda rank, n: n == 8 * rank + 7)
    finding = said(PeriodicSlowStep(), *traces)
    assert (finding.status, finding.ranks) == (Status.INFO, ())
    assert "only a few of ranks 0-10 work longer, not always the same" in finding.cause
    assert finding.problem.startswith("Every 8 steps one takes")


def test_slow_steps_of_other_ranks_each_time_are_no_failure_where_they_take_much() -> None:
    when = (3, 14, 21, 30, 37, 44, 56)
    traces = in_steps_of_its_own(7, lambda rank, n: 8 * (n == when[rank]))
    finding = said(PeriodicSlowStep(), *traces)
    assert finding.status is Status.INFO
    assert "without a period: 26 %" in finding.summary
    assert "not always the same" in finding.cause


def test_each_of_two_periods_is_named_with_what_it_adds() -> None:
    """A checkpoint every 20 steps, beside a garbage collection every 5."""
    traces = ranks(160, computing=every(5, 60), between=every(20, 400))
    found = [*judge(summary(*traces), [PeriodicSlowStep()])]
    assert [(one.status, one.problem.split(" one")[0]) for one in found] == [
        (Status.FAIL, "Every 5 steps"),
        (Status.INFO, "Every 20 steps"),
    ]
    assert "garbage collector" in found[0].cause
    assert "a checkpoint" in found[1].cause


def test_of_two_periods_that_meet_each_has_its_own_time() -> None:
    """A checkpoint every 50 steps and an evaluation every 20 are both in every hundredth."""
    both = ranks(220, between=lambda n: 240 * (n % 20 == 19) + 400 * (n % 50 == 49))
    evaluation, checkpoint = judge(summary(*both), [PeriodicSlowStep()])
    assert evaluation.problem.startswith("Every 20 steps one takes 24")
    assert checkpoint.problem.startswith("Every 50 steps one takes 40")
    assert "first in step 49" in checkpoint.summary
    assert "longer: 7.3" in checkpoint.summary  # 4 of 218 steps


def test_the_first_slow_steps_are_listed_below_the_median_of_the_others() -> None:
    finding = said(PeriodicSlowStep(), *ranks(between=every(3, 90)))
    usual, *slow = finding.evidence[0].rows
    assert usual[0] == "median of the others"
    assert [row[0] for row in slow] == list(range(2, 2 + 3 * len(slow), 3))
    assert len(slow) == len(finding.steps) == 16
    assert all(row[1] > usual[1] + 80_000_000 for row in slow)


def test_what_holds_up_the_phases_is_a_fault() -> None:
    finding = said(PeriodicSlowStep(), *ranks(computing=every(5, 60)))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert "garbage collector" in finding.cause


def test_thresholds_of_slow_steps_are_reached_at_their_value() -> None:
    slow = ranks(computing=every(5, 60))
    assert_reached_at(PeriodicSlowStep(), *slow, steps=58, slow_steps=12, part_share=1.0)
    # 12 of 58 steps take 60 ms longer: 720 of 58 * 100 + 720.
    for name in ("fail_share", "cost_share"):
        below, above = (said(PeriodicSlowStep(), *slow, **{name: share})
                        for share in (0.109, 0.112))  # fmt: skip
        assert (below.status, above.status is Status.FAIL) == (Status.FAIL, False), name


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
    assert where in said(PeriodicSlowStep(), *ranks(**extra)).cause


def test_collectives_that_only_slow_steps_call_are_counted() -> None:
    finding = said(PeriodicSlowStep(), *ranks(waiting=every(10, 90), calls=every(10, 14)))
    assert "on all ranks: 15 collectives in these steps, 1 in others." in finding.cause
    assert finding.action.startswith("Call the collectives of these steps less often")


def test_steps_of_two_iterations_are_no_fault_of_the_slower_rank() -> None:
    """As when all ranks skip an optimizer step every ten iterations, and rank 0 is slower."""
    traces = [rank(0, computing=every(10, 90)), rank(1, waiting=every(10, 90))]
    assert said(PeriodicSlowStep(), *traces).ranks == (0,)
    for trace in traces:
        for one in trace.steps:
            one.micro_steps = 2 if one.step % 10 == 9 else 1
    finding = said(PeriodicSlowStep(), *traces)
    assert (finding.status, finding.ranks) == (Status.INFO, ())
    assert "skipped an optimizer step" in finding.cause


@pytest.mark.parametrize(
    ("part", "cause"),
    [
        (
            "waiting",
            "The longer part is waits for communication; the slow steps follow no period.",
        ),
        ("between", "The extra time is outside forward, backward and step, on all ranks: "),
    ],
)
def test_slow_steps_without_a_period_have_their_part_as_the_cause(part: str, cause: str) -> None:
    extra = {part: lambda n: 90 * (n in (9, 21, 28, 50))}
    finding = said(PeriodicSlowStep(), *ranks(**extra))
    assert "without a period" in finding.summary
    assert finding.cause.startswith(cause)


@pytest.mark.parametrize(("micro_steps", "repeats"), [(4, True), (2, False)])
def test_slow_steps_without_a_period_whose_micro_steps_explain_the_time_repeat_work(
    micro_steps: int, repeats: bool
) -> None:
    """As where loss scaling overflows; two micro-steps do not take more than four times as long."""
    wild = {7, 8, 29, 41, 50}
    traces = ranks(computing=lambda n: 330 * (n in wild))
    for one in (one for trace in traces for one in trace.steps if one.step in wild):
        one.micro_steps = micro_steps
    finding = said(PeriodicSlowStep(), *traces)
    assert finding.status is (Status.INFO if repeats else Status.FAIL)
    assert ("skipped an optimizer step" in finding.cause) is repeats


def waited_for(culprit: int, at: set[int], more: float, count: int) -> list[RankTrace]:
    """Ranks of which one works longer in some steps, and the others wait."""
    late: Extra = lambda n: more * (n in at)  # noqa: E731
    own = [{"computing" if number == culprit else "waiting": late} for number in range(count)]
    return [rank(number, **one) for number, one in enumerate(own)]


def test_ranks_that_work_longer_in_turn_are_one_finding() -> None:
    """As where recompilations come at random: late-rank shows the waits for them, too."""
    wild = [7, 8, 13, 20, 29, 34, 35, 41, 44, 50]
    late = {number: wild[number::4] for number in range(4)}
    traces = [
        rank(
            number,
            computing=lambda n, mine=mine: 600 * (n in mine),
            waiting=lambda n, mine=mine: 600 * (n in wild and n not in mine),
        )
        for number, mine in late.items()
    ]
    found = judge(summary(*traces), [LateRank(), PeriodicSlowStep()])
    (told,) = (one for one in found if one.status is Status.INFO)
    assert {told.rule, *(one.rule for one in told.facets)} == {"late-rank", "periodic-slow-step"}


@pytest.mark.parametrize(("alone", "all_do", "ranks"), [(400, 0, (0,)), (300, 250, ())])
def test_a_rank_that_holds_up_the_step_after_its_own_is_named(alone, all_do, ranks) -> None:
    """It writes checkpoints at no even distance, at the ends of steps."""
    at = {9, 21, 28, 50}
    first = rank(0, computing=lambda n: (alone + all_do) * (n in at))
    other = rank(1, computing=lambda n: all_do * (n in at), waiting=lambda n: alone * (n - 1 in at))
    assert said(PeriodicSlowStep(), first, other).ranks == ranks


@pytest.mark.parametrize("count", [2, 4])
def test_one_rank_that_works_longer_in_one_step_is_named(count: int) -> None:
    finding = said(PeriodicSlowStep(), *waited_for(1, {21}, 3000, count))
    assert (finding.status, finding.ranks) == (Status.FAIL, (1,))
    assert finding.cause == (
        "Rank 1 works longer in this step, and the others wait in their collectives."
    )
    assert finding.fix == "Find what only rank 1 does then"


@pytest.mark.parametrize(
    ("more", "status", "share"), [(300, Status.INFO, "13"), (3000, Status.FAIL, "60")]
)
def test_steps_that_a_rank_delays_are_a_share_of_the_run_with_them(
    more: float, status: Status, share: str
) -> None:
    """Three of 60 steps of 100 ms take 300 or 3,000 ms longer."""
    finding = said(PeriodicSlowStep(), *waited_for(1, {17, 33, 50}, more, 4))
    assert (finding.status, finding.ranks) == (status, (1,))
    assert finding.problem.endswith(f": {share} % of the run")


@pytest.mark.parametrize(("more", "status"), [(200, Status.INFO), (300, Status.FAIL)])
def test_what_all_ranks_do_outside_the_phases_fails_if_it_takes_a_fifth_of_the_run(
    more: int, status: Status
) -> None:
    """Of ten steps of 100 ms: 200 of 1,200 ms, and 300 of 1,300."""
    assert said(PeriodicSlowStep(), *ranks(between=every(10, more))).status is status


def test_an_evaluation_by_the_engine_is_information() -> None:
    traces = ranks(computing=every(10, 90))
    for trace in traces:
        slow = [one for one in trace.spans if one.step % 10 == 9]
        trace.spans += [span("forward", one.start_ns / 1e6, one.start_ns / 1e6 + 1, one.step)
                        for one in slow]  # fmt: skip
    finding = said(PeriodicSlowStep(), *traces)
    assert finding.status is Status.INFO
    assert "an evaluation" in finding.cause


def test_what_one_rank_does_alone_is_its_fault() -> None:
    alone = rank(0, between=every(10, 90)), rank(1, waiting=every(10, 90))
    finding = said(PeriodicSlowStep(), *alone)
    assert (finding.status, finding.ranks) == (Status.FAIL, (0,))


def test_a_period_is_looked_for_where_no_step_is_left_out() -> None:
    slow = every(5, 60)
    traces = [rolling(rank(n, 1000, computing=slow), lambda n: slow(n) > 0) for n in range(2)]
    finding = said(PeriodicSlowStep(), *traces)
    assert "Every 5 steps, first in step 904, " in finding.summary


def test_a_period_shows_among_steps_that_are_less_slow() -> None:
    wild, longer = {12, 25, 31, 46, 47}, every(10, 90)
    finding = said(
        PeriodicSlowStep(),
        *ranks(between=lambda n: longer(n) + 30 * (n in wild)),
    )
    assert "Every 10 steps, first in step 9" in finding.summary


def test_nobody_waits_in_steps_without_a_collective() -> None:
    late = rank(0), rank(1, computing=lambda n: 90 * (n in (9, 21, 28, 50)))
    traces = [
        rank_trace(number, steps=one.steps, spans=one.spans, comm=[sync("all_reduce", 80, 20)])
        for number, one in enumerate(late)
    ]
    assert said(PeriodicSlowStep(), *traces).cause == "Rank 1 works longer in these steps."


def test_slow_steps_without_a_period_are_a_remark() -> None:
    wild = {7, 8, 29, 50}
    finding = said(PeriodicSlowStep(), *ranks(between=lambda n: 90 * (n in wild)))
    assert (finding.status, finding.confidence) == (Status.INFO, "low")
    assert "4 of 58 steps" in finding.summary


def test_slow_steps_without_a_period_fail_where_they_take_much_of_the_run() -> None:
    wild = {7, 8, 29, 41, 50}
    for ms, status in ((250, Status.INFO), (330, Status.FAIL)):
        finding = said(
            PeriodicSlowStep(),
            *ranks(computing=lambda n, ms=ms: ms * (n in wild)),
        )
        assert finding.status is status
    assert finding.problem == "5 of 58 steps take far longer: 22 % of the time"


def test_long_waits_for_one_stall_are_a_facet_of_its_step() -> None:
    def stall(number: int) -> float:
        return 9000 * (number == 31)

    run = summary(rank(0, waiting=stall), rank(1, computing=stall))
    slow, waits = judge(
        run,
        [PeriodicSlowStep(), CommunicationBoundStep()],
    )
    assert (slow.status, waits.status) == (Status.FAIL, Status.NOT_APPLICABLE)
    assert slow.explains_ms == pytest.approx(4500 / 58)


def test_slow_steps_that_cost_nothing_are_not_spoken_of() -> None:
    finding = said(PeriodicSlowStep(), *ranks(between=lambda n: 30 * (n == 30)))
    assert finding.status is Status.PASS


def test_one_wild_step_is_spoken_of_where_it_takes_a_fifth_of_the_run() -> None:
    for ms, status in ((500, Status.PASS), (2000, Status.FAIL)):
        finding = said(PeriodicSlowStep(), *ranks(between=lambda n, ms=ms: ms * (n == 30)))
        assert finding.status is status
    assert finding.summary.startswith("1 of 58 steps takes far longer than its neighbours")
    assert finding.cause.startswith("The extra time is outside forward, backward and step, on all")


@pytest.mark.parametrize("settled_from", [5, 8])
def test_steps_of_a_slow_start_are_no_slow_steps(settled_from: int) -> None:
    """The first screen says from which step on the run has settled."""
    traces = ranks(computing=lambda n: 60 * (n < settled_from))
    assert said(PeriodicSlowStep(), *traces).status is Status.PASS


@pytest.mark.parametrize("settled_from", [6, 9])
def test_a_period_is_found_that_begins_behind_a_slow_start(settled_from: int) -> None:
    traces = ranks(computing=lambda n: 60 * (n < settled_from) + 100 * (n % 10 == 9))
    found = said(PeriodicSlowStep(), *traces)
    assert found.summary.startswith("Every 10 steps, first in step 9, ")
