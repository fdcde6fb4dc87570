"""Steps that take longer from a step on, or for a stretch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dsprof.analysis.run.series import change_of
from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.communication_bound_step import CommunicationBoundStep
from dsprof.rules.communication.late_rank import LateRank
from dsprof.rules.runner import judge
from dsprof.rules.steps.periodic_slow_step import PeriodicSlowStep
from dsprof.rules.steps.step_parts import OF_ALL
from dsprof.rules.steps.step_time_change import StepTimeChange
from dsprof.rules.steps.step_time_drift import StepTimeDrift
from tests.factories.trace import assert_reached_at, header, said, summary
from tests.rules.steps.stepwise import (
    NOISE,
    columns_of,
    from_step,
    in_spells,
    rank,
    ranks,
    rolling,
    summed,
)


def test_sums_of_steady_steps_pass() -> None:
    assert said(StepTimeChange(), *summed(4, lambda _, at: 2 * (at % 2))).status is Status.PASS


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
    finding = said(StepTimeChange(), *summed(8, working, late))
    assert (finding.status, finding.ranks) == (Status.FAIL, slow_ranks)
    assert finding.problem == "Steps take 20 % longer from about step 205 to 395"
    assert cause in finding.cause


def test_sums_name_the_host_of_ranks_that_are_slow_in_turn() -> None:
    """All ranks of node1 are slow; a span has the two that are so by a little more."""
    slow = lambda n, at: n > 3 and 20 <= at < 40  # noqa: E731
    traces = summed(8, lambda n, at: slow(n, at) * (40 + (n + at) % 3 / 10 - (n == 7)))
    for number, trace in enumerate(traces):
        trace.header = header(number, 8, host=f"node{number // 4}", boot_id=f"b{number // 4}")
    finding = said(StepTimeChange(), *traces)
    assert (finding.status, finding.ranks) == (Status.FAIL, (4, 5, 6))
    assert "They all run on node1." in finding.cause
    assert finding.cause.endswith("rank 7 of that host may be as slow.")


def test_sums_do_not_show_what_costs_little_of_the_run() -> None:
    traces = summed(8, lambda _, at: 20 * (20 <= at < 40))
    assert said(StepTimeChange(), *traces, run_share=0.07).status is Status.PASS


def test_a_rank_that_delays_few_spans_is_left_to_the_rule_that_names_it() -> None:
    traces = summed(8, lambda n, at: 20 * (n == 4 and 20 <= at < 32))
    assert said(StepTimeChange(), *traces).status is Status.PASS
    assert said(PeriodicSlowStep(), *traces).ranks == (4,)


def test_sums_of_other_work_are_no_problem() -> None:
    traces = summed(8, lambda _, at: 20 * (at >= 30))
    for trace in traces:
        for one in trace.rollups.values():
            one.nbytes *= 1 + (one.begin_s >= 300)
    assert said(StepTimeChange(), *traces).status is Status.INFO


@pytest.mark.parametrize(("first", "last"), [(30, 44), (30, 79), (15, 99)])
def test_a_slow_stretch_that_ends_is_named_with_its_end(first: int, last: int) -> None:
    """Another program on the host of rank 0 comes and goes."""
    slow = rank(0, 120, computing=lambda n: 40 * (first <= n <= last))
    other = rank(1, 120, waiting=lambda n: 40 * (first <= n <= last))
    finding = said(StepTimeChange(), slow, other)
    assert (finding.status, finding.ranks) == (Status.FAIL, (0,))
    assert finding.problem == f"Steps take 40 % longer from step {first} to {last}"
    assert finding.steps == (first,)


def test_slow_stretches_of_one_cause_are_one_finding() -> None:
    """Of 30 steps after warm-up, 16 are slow; seen as one change of level they are not."""
    traces = ranks(32, computing=in_spells(range(5, 13), range(20, 28)))
    finding = said(StepTimeChange(), *traces)
    assert (finding.status, finding.steps) == (Status.FAIL, (5, 20))
    assert finding.problem == "Steps take 40 % longer from step 5 to 12 and 20 to 27"
    assert finding.title == "Steps are slower for a while"
    assert finding.fix == "Check what happened at steps 5 and 20"
    assert "forward, backward and optimizer step, on all ranks" in finding.cause
    assert said(PeriodicSlowStep(), *traces).status is Status.PASS


def test_a_slow_end_after_a_slow_start_is_named() -> None:
    """The report said that there were no problems."""
    finding = said(StepTimeChange(), *ranks(30, computing=in_spells(range(9), range(22, 30))))
    assert finding.problem == "Steps take 40 % longer from step 22 on"
    assert "instead of 99.8 ms" in finding.summary


def test_a_rise_that_is_interrupted_once_is_a_drift_and_no_stretches() -> None:
    """Both rules named it, as a steady rise and as a change."""
    rises = lambda n: 0.3 * n - 30 * (n in range(120, 136))  # noqa: E731
    traces = ranks(200, computing=rises)
    assert said(StepTimeDrift(), *traces).status is Status.FAIL
    assert said(StepTimeChange(), *traces).status is Status.PASS


def test_a_late_rank_says_from_which_step_on_its_steps_take_longer() -> None:
    """Two findings of one cause were two problems, with other severities."""
    late = rank(0, computing=from_step(30, 60)), rank(1, waiting=from_step(30, 60))
    found = {one.rule: one for one in judge(summary(*late), [LateRank(), StepTimeChange()])}
    assert found["step-time-change"].status is Status.NOT_APPLICABLE
    assert found["step-time-change"].summary.endswith("Covered by late-rank.")
    assert found["late-rank"].problem == "Rank 0 delays every step from 30 on by 60.0 ms"
    assert found["late-rank"].severity is Severity.HIGH
    assert "From step 30 on a step takes 160 ms" in found["late-rank"].facets[0].summary


def test_slow_stretches_of_other_causes_are_findings_of_their_own() -> None:
    one, both = range(20, 32), range(60, 75)
    traces = [
        rank(0, 100, computing=in_spells(one, both)),
        rank(1, 100, computing=in_spells(both), waiting=in_spells(one)),
    ]
    found = judge(summary(*traces), [StepTimeChange()])
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
        StepTimeChange(),
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
    finding = said(StepTimeChange(), *summed(8, lambda n, at: 20 * (slow.get(at) == n)))
    assert (finding.status, finding.ranks) == (Status.FAIL, ())
    assert "only a few of ranks 0-3 work longer" in finding.cause


def test_waits_of_slow_stretches_are_explained_by_their_share_of_the_run() -> None:
    waiting = in_spells(range(20, 32), range(60, 80))
    finding = said(StepTimeChange(), *ranks(100, waiting=waiting))
    assert finding.explains_ms == pytest.approx(40 * 32 / 98, rel=0.05)
    assert finding.problem.endswith("from step 20 to 31 and 60 to 79")


def test_sums_show_several_slow_stretches() -> None:
    slow = (*range(10, 20), *range(40, 50))
    finding = said(
        StepTimeChange(),
        *summed(8, lambda n, at: 20 * (n in (4, 5) and at in slow)),
    )
    assert (finding.status, finding.ranks) == (Status.FAIL, (4, 5))
    assert finding.problem == "Steps take 20 % longer from about step 105 to 195 and 405 to 495"


def test_the_step_from_which_on_steps_are_longer_is_named() -> None:
    finding = said(StepTimeChange(), *ranks(computing=from_step(30, 40)))
    assert finding.status is Status.FAIL
    assert "From step 30 on a step takes 140" in finding.summary
    assert finding.title == "Steps become slower at one moment"
    assert "forward, backward and optimizer step, on all ranks" in finding.cause
    assert said(StepTimeDrift(), *ranks(computing=from_step(30, 40))).status is Status.PASS


def test_ranks_without_a_trace_are_not_said_to_be_slower() -> None:
    """The other rank of two left no trace."""
    finding = said(StepTimeChange(), rank(0, computing=from_step(30, 40)))
    assert "forward, backward and optimizer step, on all ranks but rank 1. " in finding.cause


@pytest.mark.parametrize("more", [40, 100])
def test_computation_that_takes_longer_on_all_ranks_may_be_more_work(more: int) -> None:
    """Longer sequences change no count where only gradients are reduced."""
    changed = ranks(computing=from_step(30, more))
    grown = ranks(computing=lambda n: more * n / 60)
    for finding in (said(StepTimeChange(), *changed), said(StepTimeDrift(), *grown)):
        assert (finding.status, finding.severity) == (Status.FAIL, Severity.LOW)
        assert finding.cause.endswith(OF_ALL)
    of_one = said(StepTimeChange(), changed[0], rank(1, waiting=from_step(30, more)))
    assert of_one.severity is not Severity.LOW
    assert OF_ALL not in of_one.cause


def test_a_rank_is_not_said_to_explain_what_grows_beside_it() -> None:
    """From step 30 on rank 0 computes 40 ms longer, and a transfer takes 25 ms longer."""
    slow = rank(0, computing=from_step(30, 40), waiting=from_step(30, 25))
    finding = said(StepTimeChange(), slow, rank(1, waiting=from_step(30, 65)))
    assert (finding.status, finding.ranks) == (Status.FAIL, (0,))
    assert finding.summary.endswith("(+66 %). The own time of rank 0 explains 62 % of that.")


def test_a_rank_that_gets_slower_is_named_and_not_those_that_wait() -> None:
    slow, other = rank(0, computing=from_step(30, 40)), rank(1, waiting=from_step(30, 40))
    finding = said(StepTimeChange(), slow, other)
    assert (finding.status, finding.ranks) == (Status.FAIL, (0,))
    assert "Only rank 0 got slower" in finding.cause
    assert finding.summary.endswith("%).")
    assert finding.fix == "Check what happened at step 30 on rank 0"


def test_a_network_that_slows_down_at_a_step_explains_the_waits_from_there_on() -> None:
    """58 steps are measured, 30 of them with 40 ms more in the collective of 20 ms."""
    traces = ranks(waiting=from_step(30, 40))
    finding = said(StepTimeChange(), *traces)
    assert finding.ranks == ()
    assert finding.explains_ms == pytest.approx(40 * 30 / 58, rel=0.05)
    assert "processor time" in finding.action
    both = judge(
        summary(*traces),
        [CommunicationBoundStep(), StepTimeChange()],
    )
    assert [(one.rule, one.status) for one in both] == [
        ("step-time-change", Status.FAIL),
        ("communication-bound-step", Status.NOT_APPLICABLE),
    ]
    assert said(StepTimeChange(), *ranks(computing=from_step(30, 40))).explains_ms == 0


def test_of_slower_steps_only_the_longer_waits_are_exposed_time_explained() -> None:
    """It explained more than was exposed where computation grew as well."""
    traces = ranks(waiting=from_step(30, 30), computing=from_step(30, 15))
    finding = said(StepTimeChange(), *traces)
    assert "waits for communication" in finding.cause
    assert finding.explains_ms == pytest.approx(30 * 30 / 58, rel=0.01)


def test_a_link_is_blamed_only_between_hosts_or_devices() -> None:
    """Ranks on CPUs of one host all send over its loopback."""
    one, other = ranks(waiting=from_step(30, 40))
    other.header = header(1, 2, host="b", boot_id="b")
    finding = said(StepTimeChange(), one, other)
    assert "a link or an adapter that lost speed" in finding.action


def test_other_work_is_information() -> None:
    longer = ranks(computing=from_step(30, 40), calls=from_step(30, 3))
    finding = said(StepTimeChange(), *longer)
    assert finding.status is Status.INFO
    assert "collectives" in finding.summary


@pytest.mark.parametrize(("more", "status"), [(1, Status.FAIL), (2, Status.INFO)])
def test_one_call_more_in_twenty_is_the_same_work_and_two_are_not(
    more: int, status: Status
) -> None:
    calls = from_step(30, more)
    longer = ranks(computing=from_step(30, 40), calls=lambda n: 19 + calls(n))
    assert said(StepTimeChange(), *longer).status is status


def test_steps_that_get_shorter_are_information() -> None:
    finding = said(StepTimeChange(), *ranks(computing=lambda n: 40 * (n < 30)))
    assert finding.status is Status.INFO
    assert "faster" in finding.title
    assert finding.cause.startswith("The slow start")


def test_slow_steps_of_most_of_a_run_are_no_slow_start() -> None:
    finding = said(StepTimeChange(), *ranks(computing=lambda n: 40 * (n < 40)))
    assert finding.status is Status.INFO
    assert finding.cause.startswith("What slowed most of the run ended")


@pytest.mark.parametrize("first", [4, 57])
def test_a_change_at_the_very_ends_is_none(first: int) -> None:
    assert said(StepTimeChange(), *ranks(computing=from_step(first, 40))).status is Status.PASS


@pytest.mark.parametrize("last", [7, 10])
def test_a_change_in_the_last_steps_is_found_and_told_once(last: int) -> None:
    """It was ten long steps "without a period"."""
    changed = ranks(computing=from_step(60 - last, 40))
    assert said(StepTimeChange(), *changed).steps == (60 - last,)
    assert judge(summary(*changed), [PeriodicSlowStep()])[0].status is Status.PASS


def test_a_small_change_is_none() -> None:
    assert said(StepTimeChange(), *ranks(computing=from_step(30, 8))).status is Status.PASS


def test_thresholds_of_a_change_are_reached_at_their_value() -> None:
    changed = ranks(between=from_step(30, 40))
    change = change_of(columns_of(*changed).total_ns)
    assert change is not None
    more_ns = change.after - change.before
    share = more_ns / change.before
    rule = StepTimeChange()
    assert_reached_at(rule, *changed, steps=58, least_side=28, severe_share=share)
    sigmas = more_ns / change.scatter
    for name, value, below in (("share", share, Status.PASS), ("sigmas", sigmas, Status.INFO)):
        low, high = ({name: value * (1 + part)} for part in (-1e-9, 1e-9))
        assert said(rule, *changed, **low).status is Status.FAIL, name
        assert said(rule, *changed, **high).status is below, name
    assert said(rule, *changed, chance=change.p).status is Status.FAIL
    assert said(rule, *changed, chance=change.p / 2).status is Status.PASS


@pytest.mark.parametrize(
    ("more_ms", "status"), [(40, Status.FAIL), (20, Status.INFO), (-20, Status.PASS)]
)
def test_a_change_that_stands_out_little_from_the_scatter_is_not_denied(
    more_ms: int, status: Status
) -> None:
    def computing(number: int) -> float:
        return float(more_ms * (number >= 150) + 10 * NOISE[-1 - number])

    finding = said(StepTimeChange(), *ranks(steps=300, computing=computing))
    assert finding.status is status
    if status is Status.INFO:
        assert abs(finding.steps[0] - 150) < 5
        assert "but steps scatter by" in finding.summary


@pytest.mark.parametrize(("kept", "named"), [(range(0), 504), (range(496, 504), 500)])
def test_a_change_is_found_in_steps_kept_by_their_number(kept: range, named: int) -> None:
    changed = ranks(steps=1000, computing=from_step(500, 40))
    finding = said(StepTimeChange(), *(rolling(one, kept.__contains__) for one in changed))
    assert (finding.status, finding.steps) == (Status.FAIL, (named,))
    assert f"From step {named} on a step takes 140" in finding.summary


def test_a_change_in_the_newest_steps_is_found() -> None:
    changed = ranks(steps=1000, computing=from_step(950, 40))
    finding = said(StepTimeChange(), *(rolling(one, lambda _: False) for one in changed))
    assert (finding.status, finding.steps) == (Status.FAIL, (950,))
