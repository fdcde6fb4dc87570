"""late-rank by the arrivals that dsprof recorded."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from dsprof.analysis.aggregates import arrivals
from dsprof.analysis.aggregates.run import Run
from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.late_rank import LateRank
from dsprof.rules.runner import judge
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.selection import Selection
from tests.factories.trace import (
    assert_reached_at,
    engine,
    group,
    header,
    rank_trace,
    said,
    span,
    step,
    summary,
    sync,
    zero_rank,
)
from tests.rules.arriving import STEPS, at, jittering, rank

RULE = LateRank()


def test_the_rank_that_computes_longer_is_named_with_what_it_costs():
    finding = said(RULE, rank(0, 30), rank(1, 80))
    assert (finding.status, finding.ranks) == (Status.FAIL, (1,))
    assert (
        "Rank 1 delays the others by 50.0 ms per step (50 %): it arrives last in 10 of the 10"
        in finding.summary
    )
    assert finding.severity is Severity.HIGH
    assert "take 50.0 ms longer" in finding.cause
    assert finding.saving_ms_per_step == pytest.approx((37.5, 62.5))
    columns = [column.label for column in finding.evidence[0].columns]
    assert dict(zip(columns, finding.evidence[0].rows[0], strict=True)) == {
        "rank": 1,
        "last to arrive": 10,
        "of collectives": 10,
        "steps in which only it was late": 10,
        "others waited for it, per step": 50_000_000,
        "it waited for others, per step": 0,
        "transfer, per step": 10_000_000,
    }


def working(rank: int, others: Callable[[int], float], last: Callable[[int], float]) -> RankTrace:
    """One of two ranks that work so many ms in a step; rank 1, as `last` says, is waited for."""
    comm, marks, now = [], [], 0.0
    for n in range(40):
        mine, most = last(n) if rank else others(n), last(n)
        comm.append(sync("all_reduce", now + mine, most - mine + 5, seq=n + 1, step=n))
        marks.append(step(n, now, now + most + 5))
        now += most + 5
    return rank_trace(rank, 2, comm=comm, steps=marks, groups={1: group(2)})


@pytest.mark.parametrize(("longer", "status"), [(0, Status.PASS), (60, Status.FAIL)])
def test_a_rank_is_not_late_where_the_other_one_works_less(longer: int, status: Status) -> None:
    """In every fifth step rank 0 works 60 ms less, or rank 1 works 60 ms longer."""
    work = {
        "others": lambda n: 100 - (60 - longer) * (n % 5 == 4),
        "last": lambda n: 100 + longer * (n % 5 == 4),
    }
    finding = said(RULE, *(working(rank, **work) for rank in range(2)))
    assert finding.status is status
    if status is Status.PASS:
        assert finding.summary.startswith("The others wait for rank 1 in 8 of 38 steps, which")


def test_a_rank_that_does_not_become_faster_with_the_others_is_late() -> None:
    """From step 25 on its data are not cached."""
    work = {"others": lambda n: 100 if n < 25 else 40, "last": lambda n: 100}
    finding = said(RULE, *(working(rank, **work) for rank in range(2)))
    assert finding.status is Status.FAIL
    assert "It is late from step 25 on" in finding.summary


def test_the_rank_that_is_named_leads_the_evidence_where_one_wait_for_another_is_long() -> None:
    """Rank 1 is late by 40 ms in 29 steps, rank 0 by 3 s in one."""

    def late(number: int) -> RankTrace:
        comm, steps, at = [], [], 0.0
        for n in range(30):
            length, own, other = (3100, 3040, 40) if n == 20 else (100, 40, 80)
            arrive = own if number == 0 else other
            comm.append(sync("all_reduce", at + arrive, length - 10 - arrive, seq=n + 1, step=n))
            steps.append(step(n, at, at + length))
            at += length
        return rank_trace(number, comm=comm, steps=steps)

    finding = said(RULE, late(0), late(1))
    assert (finding.status, finding.ranks) == (Status.FAIL, (1,))
    rows = finding.evidence[0].rows
    assert [row[0] for row in rows] == [1, 0]
    assert rows[0][4] < rows[1][4]  # what the others waited for each in the mean


def test_a_straggler_recorded_in_a_part_of_the_steps_is_named_for_these_only() -> None:
    """Its record holds 40 of 58 measured steps: of the others it is unknown who comes last."""
    traces = [zero_rank(n, 3, steps=60, comm_ms=5 if n == 1 else 25) for n in range(3)]
    part = zero_rank(1, 3, steps=42)
    whole = said(RULE, *traces)
    finding = said(RULE, traces[0], part, traces[2])
    assert whole.saving_ms_per_step is not None
    assert (whole.ranks, finding.ranks) == ((1,), (1,))
    assert whole.problem == "Rank 1 delays every step by 20.0 ms (20 %)"
    assert finding.problem == "Rank 1 delays 40 of 58 steps by 20.0 ms (20 %)"
    assert finding.summary.endswith("In the other 18 measured steps this is unknown.")
    least, most = (ms * 40 / 58 for ms in whole.saving_ms_per_step)
    assert finding.saving_ms_per_step == pytest.approx((least, most))


@pytest.mark.parametrize("shifts", [(30,), (30, 30, 30, 30, 0)])
def test_a_rank_may_delay_no_more_steps_than_communicate(shifts: tuple[float, ...]) -> None:
    late = [30 + shift for shift in shifts]
    finding = said(RULE, *jittering(60, (30,), late, every=5), seconds=99.0)
    late = sum(bool(shifts[k % len(shifts)]) for k in range(12))
    assert finding.problem.startswith(f"Rank 1 may delay {late} of 58 steps by 30.0 ms")
    assert finding.summary.endswith("In the other 46 measured steps no rank communicates.")


def test_waits_of_a_run_that_communicates_in_some_steps_are_a_mean_over_all():
    """The two ranks come last in turn."""
    finding = said(RULE, *jittering(60, (30, 50), (50, 30), every=5))
    assert finding.status is Status.PASS
    assert "Ranks wait 2.07 ms per step for the last arrival (2.1 %)" in finding.summary
    assert finding.summary.endswith("In the other 46 measured steps no rank communicates.")


def test_a_rank_that_is_last_in_most_steps_does_not_delay_every_step() -> None:
    """It comes last in 20 of 26 steps; in the others rank 0 does, by a little."""
    finding = said(RULE, *jittering(28, (35,), (30, 60, 60, 60)))
    assert finding.ranks == (1,)
    assert finding.problem.startswith("Rank 1 delays most steps by ")
    assert "last in 20 of the 26 steps" in finding.summary


def stalled(number: int, arrive: float, more: float) -> RankTrace:
    """As `rank`, but the last step takes 500 ms, in which it arrives `more` ms later."""
    comm = [
        sync("all_reduce", 100 * n + arrive, 90 - arrive, seq=n + 1, step=n)
        for n in range(STEPS - 1)
    ]
    last = 100 * (STEPS - 1)
    issue = last + arrive + more
    comm.append(sync("all_reduce", issue, last + 490 - issue, seq=STEPS, step=STEPS - 1))
    steps = [step(n, 100 * n, 100 * (n + 1)) for n in range(STEPS - 1)]
    steps.append(step(STEPS - 1, last, last + 500))
    return rank_trace(number, comm=comm, groups={1: group(2)}, steps=steps, engine=engine())


def test_a_long_delay_of_one_step_is_not_said_of_every_step():
    even = said(RULE, stalled(0, 30, 0), stalled(1, 80, 0))
    assert even.problem.startswith("Rank 1 delays every step by 50.0 ms (")
    uneven = said(RULE, stalled(0, 30, 0), stalled(1, 80, 400))
    assert uneven.problem == "Rank 1 delays most steps by 50.0 ms (mean 90.0 ms)"


@pytest.mark.parametrize(("seconds", "begin"), [(1.0, "Rank 1 delays"), (99.0, "Rank 1 may delay")])
def test_a_rank_that_is_late_in_some_steps_is_not_said_to_delay_most(seconds: float, begin: str):
    """The median step is not delayed at all."""
    ranks = jittering(42, (10,), (50, 10, 10, 10), *[(10,)] * 10)
    finding = said(RULE, *ranks, seconds=seconds)
    assert finding.ranks == (1,)
    assert finding.problem == f"{begin} 10 of 40 steps by 40.0 ms"


def of_many_calls(number: int, late_steps: range) -> RankTrace:
    """40 steps of 16 collectives; in some, rank 1 is late by 40 ms, at the first collective."""
    comm, spans, steps, begin = [], [], [], 0.0
    for n in range(40):
        late = 40 if n in late_steps else 0
        first = begin + 60 + (late if number == 1 else 0)
        comm.append(sync("all_reduce", first, begin + 62 + late - first, seq=16 * n + 1, step=n))
        for call in range(1, 16):
            at = begin + 60 + late + 2 * call
            comm.append(sync("all_reduce", at, 2, seq=16 * n + call + 1, step=n))
        spans.append(span("forward", begin, first, n))
        steps.append(step(n, begin, begin + 100 + late))
        begin += 100 + late
    parts = {"groups": {1: group(8)}, "comm": comm, "spans": spans, "steps": steps}
    return rank_trace(number, 8, engine=engine(), **parts)


def test_of_a_sample_of_calls_no_step_is_said_to_be_delayed_by_more_than_it_is(monkeypatch):
    """Of 16 calls 8 are compared: the late one is among them in some steps, and counts twice."""
    traces = [of_many_calls(number, range(10, 34)) for number in range(8)]
    monkeypatch.setattr(arrivals, "ROWS", 1280)
    finding = said(RULE, *traces)
    assert finding.ranks == (1,)
    assert re.fullmatch(r"Rank 1 delays a step by [\d.]+ ms on average \(\d+ %\)", finding.problem)
    assert "no single rank stands out" in finding.summary
    assert finding.summary.endswith(
        "Of 38 measured steps a sample of 20 is compared. "
        "Of the collectives of a step one in 2 is compared."
    )


@pytest.mark.parametrize("late", [(2, 3), (4, 5, 6, 7), (6, 7)])
def test_ranks_that_are_late_together_are_named(late):
    world = 4 if late == (2, 3) else 8
    finding = said(RULE, *at(*(80 if n in late else 35 for n in range(world))))
    assert (finding.status, finding.ranks) == (Status.FAIL, late)
    assert "by 45.0 ms per step (45 %)" in finding.summary
    assert "late together in 10 of 10 steps." in finding.summary
    assert "optimizer step take 45.0 ms longer than those of the others" in finding.cause
    assert finding.cause.endswith("or gets less processor time.")


def test_ranks_that_are_late_together_in_half_of_the_steps_are_named_with_their_number():
    finding = said(RULE, *jittering(60, (35,), (35,), (35, 80), (35, 80)))
    assert (finding.status, finding.ranks) == (Status.FAIL, (2, 3))
    assert finding.problem == "Ranks 2-3 delay 29 of 58 steps by 45.0 ms"
    assert "by 22.5 ms per step (22 %): they are late together in 29 of 58 steps" in finding.summary


def test_ranks_that_are_late_together_for_a_while_are_named_with_these_steps():
    slow = [80 if 20 <= step < 40 else 35 for step in range(60)]
    finding = said(RULE, *jittering(60, (35,), (35,), (35,), (35,), slow, slow, slow))
    assert (finding.status, finding.ranks) == (Status.FAIL, (4, 5, 6))
    assert "late together in 20 of 58 steps, from step 20 to 39." in finding.summary
    slow = [80 if step >= 20 else 35 for step in range(60)]
    finding = said(RULE, *jittering(60, (35,), (35,), (35,), (35,), slow, slow, slow))
    assert "late together in 40 of 58 steps." in finding.summary


@pytest.mark.parametrize(("late", "share"), [((1,), 0.5), ((2, 3), 0.45)])
def test_thresholds_are_reached_at_their_value(late, share):
    world = 2 if late == (1,) else 4
    ranks = at(*(80 if n in late else 80 - 100 * share for n in range(world)))
    assert_reached_at(RULE, *ranks, step_share=share, severe_share=share, seconds=1.0)


def test_of_most_ranks_none_is_late():
    """Three of four that arrive together are what is usual; the fourth is early."""
    finding = said(RULE, *at(30, 80, 80, 80))
    assert (finding.status, finding.ranks) == (Status.PASS, ())


def test_a_rank_with_a_late_companion_in_most_steps_saves_half_of_its_delay_at_least():
    """The others wait 50 ms; without it they would wait for the second-last, in most steps."""
    companion = (*[30] * 6, *[78] * 6)
    finding = said(RULE, *jittering(12, (30,), (30,), companion, (80,), (30,)))
    assert (finding.status, finding.ranks) == (Status.FAIL, (3,))
    assert finding.saving_ms_per_step == pytest.approx((25, 50))


def test_a_rank_that_is_mostly_late_beside_others_saves_nothing_that_is_known():
    """Rank 3 is late in all steps, in a few of them as the only one."""

    late = [{3} if n < 10 else {3, n % 3} for n in range(60)]
    ranks = [[80 if rank in those else 30 for those in late] for rank in range(16)]
    finding = said(RULE, *jittering(60, *ranks))
    assert (finding.status, finding.ranks) == (Status.FAIL, (3,))
    assert finding.problem == "Rank 3 delays a step by 50.0 ms on average (50 %)"
    assert finding.saving_ms_per_step is None
    assert finding.explains_ms == pytest.approx(50 * 15 / 16)
    assert finding.confidence == "medium"


OTHERS = [(20, 31, 25), (33, 22, 28), (26, 24, 12)]


@pytest.mark.parametrize("count", [2, 3])
def test_few_ranks_that_vary_do_not_hide_one_that_is_late_in_every_step(count):
    ranks = jittering(50, (80, 82), *OTHERS[:count])
    finding = said(RULE, *ranks)
    assert (finding.status, finding.ranks, finding.severity) == (Status.FAIL, (0,), Severity.HIGH)
    assert finding.problem.startswith("Rank 0 delays every step by 5")
    assert "last in 48 of the 48 steps" in finding.summary


def test_a_rank_that_is_late_from_a_step_on_is_not_said_to_delay_every_step():
    times = tuple(10 if n < 16 else 60 for n in range(60))
    finding = said(RULE, *jittering(60, (10, 11), times))
    assert (finding.status, finding.ranks, finding.steps) == (Status.FAIL, (1,), (16,))
    assert finding.problem == "Rank 1 delays every step from 16 on by 49.5 ms"
    assert "late from step 16 on, by 49.5 ms per step" in finding.summary
    assert "stands out" not in finding.summary  # of steps before it too
    assert said(RULE, *jittering(60, (10, 11), (60,))).problem.startswith("Rank 1 delays every")


def test_of_two_ranks_late_in_turn_one_that_is_late_from_a_step_on_is_named():
    times = (*(10, 10, 10, 10, 28, 28, 28) * 4, *(80,) * 26)
    finding = said(RULE, *jittering(54, (25,), times))
    assert (finding.status, finding.ranks, finding.steps) == (Status.FAIL, (1,), (28,))


@pytest.mark.parametrize(("steps", "confidence"), [(32, "medium"), (62, "high")])
def test_confidence_is_high_if_chance_is_far_from_an_explanation(steps, confidence):
    """Of two ranks, one is late in four of five steps."""
    finding = said(RULE, *jittering(steps, (30,), (60, 60, 10, 60, 60)))
    assert (finding.status, finding.confidence) == (Status.FAIL, confidence)


def test_few_steps_of_three_ranks_say_how_many_more_prove_it():
    ranks = ((80, 82), *OTHERS[:2])
    finding = said(RULE, *jittering(7, *ranks), seconds=0.1)
    assert (finding.status, finding.ranks) == (Status.UNKNOWN, (0,))
    assert finding.more_steps
    enough = jittering(7 + finding.more_steps, *ranks)
    assert said(RULE, *enough, seconds=0.1).status is Status.FAIL


def test_steps_without_a_late_rank_are_said_and_no_steps_are_asked_for_without_a_number():
    """Only in one step rank 0 stands out; in the others ranks arrive at even distances."""
    times = [[usual] * 10 + [once] + [usual] * 39 for once, usual in ((80, 60), (10, 40), (10, 20))]
    finding = said(RULE, *jittering(50, *times))
    assert (finding.status, finding.fix, finding.more_steps) == (Status.UNKNOWN, "", None)
    assert finding.summary == (
        "Unknown: rank 0 was the only late rank in 1 of 48 steps and no single rank stands out "
        "in 47, which may be chance."
    )


def test_ranks_late_together_are_named_though_one_of_them_once_was_the_only_one():
    once = tuple(10 if n == 10 else 80 for n in range(50))
    finding = said(RULE, *jittering(50, (80,), once, (10,), (10,)))
    assert (finding.status, finding.ranks) == (Status.FAIL, (0, 1))


def test_half_a_second_does_not_tell_several_late_ranks_either():
    assert said(RULE, *at(35, 35, 80, 80), seconds=1.1).status is not Status.FAIL
    assert said(RULE, *at(35, 35, 80, 80), step_share=0.5).status is not Status.FAIL


def test_half_a_second_is_what_another_program_may_take():
    """On a busy machine one rank of a run of 0.5 s came last in 24 of 24 steps."""
    finding = said(RULE, rank(0, 30), rank(1, 80), seconds=1.1)
    assert finding.status is Status.UNKNOWN
    assert "rank 1 comes last, but the measured steps last 1.00 s together" in finding.summary


def test_ranks_that_arrive_together_pass():
    finding = said(RULE, rank(0, 80), rank(1, 79))
    assert finding.status is Status.PASS
    assert "500 µs per step" in finding.summary


def test_a_slow_network_makes_nobody_late():
    """Long transfer from a common arrival is no wait for a rank."""
    assert said(RULE, rank(0, 10), rank(1, 10)).status is Status.PASS


def suspected(steps: int, step_ms: float = 100):
    return said(
        RULE,
        *(
            zero_rank(number, comm_ms=share * step_ms, steps=steps, step_ms=step_ms)
            for number, share in enumerate((0.5, 0.05))
        ),
    )


@pytest.mark.parametrize(
    ("steps", "step_ms", "why"), [(6, 1000, "may be chance"), (12, 20, "last 200 ms together")]
)
def test_a_suspect_says_how_many_more_steps_decide_it(steps, step_ms, why):
    finding = suspected(steps, step_ms)
    assert (finding.status, finding.ranks, finding.is_problem) == (Status.UNKNOWN, (1,), True)
    assert why in finding.summary
    more = finding.more_steps
    assert finding.fix == f"Record {more} more steps to be sure"
    assert suspected(steps + more, step_ms).status is Status.FAIL


def test_of_chosen_steps_more_are_to_be_chosen():
    run = summary(*(zero_rank(n, comm_ms=ms, steps=12, step_ms=20) for n, ms in ((0, 10), (1, 1))))
    run = run.with_part(replace(run[Run], selection=Selection(steps=range(12))))
    (finding,) = judge(run, [RULE])
    assert finding.fix == f"Choose {finding.more_steps} more steps to be sure"


def test_ranks_that_were_not_asked_for_did_not_leave_no_trace():
    run = summary(rank(0, 30, world=3), rank(1, 80, world=3))
    chosen = run.with_part(replace(run[Run], selection=Selection(ranks=(range(2),))))
    for one, gone in ((run, "left no trace"), (chosen, "are not read")):
        (finding,) = judge(one, [RULE])
        assert f"1 of 3 ranks {gone}, and one of them may come later" in finding.summary


def test_four_steps_of_four_ranks_are_not_enough_and_twelve_are():
    def four(steps: int) -> list[RankTrace]:
        return [zero_rank(n, 4, comm_ms=5 if n == 2 else 50 + n, steps=steps) for n in range(4)]

    assert said(RULE, *four(6)).status is Status.UNKNOWN
    finding = said(RULE, *four(12))
    assert (finding.status, finding.ranks) == (Status.FAIL, (2,))
    assert finding.saving_ms_per_step == pytest.approx((34, 57), abs=1)


def test_several_late_ranks_of_a_large_group_are_named_together():
    late = {7, 8}
    traces = [rank(n, 80 if n in late else 30 + n / 10, world=40) for n in range(40)]
    assert said(RULE, *traces).ranks == (7, 8)


def test_a_recording_that_begins_later_is_no_mismatch():
    """Rank 1 counts from its own first collective: two fewer, each two numbers lower."""
    one, other = rank(0, 30), rank(1, 80)
    other.collectives = _without_first(other, 2)
    finding = said(RULE, one, other)
    assert (finding.status, finding.ranks) == (Status.FAIL, (1,))
    assert "by 50.0 ms" in finding.summary


def _without_first(trace: RankTrace, count: int):
    later = rank_trace(
        comm=[
            sync("all_reduce", 100 * n + 80, 10, seq=n + 1 - count, step=n)
            for n in range(count, STEPS)
        ]
    )
    return later.collectives


def test_a_missing_rank_may_come_later_still():
    finding = said(RULE, rank(0, 30, world=3), rank(1, 80, world=3))
    assert (finding.status, finding.ranks) == (Status.UNKNOWN, ())
    assert "rank 1 comes last, by 50.0 ms" in finding.summary


def test_numbers_that_come_twice_tell_nothing():
    comm = [sync("all_reduce", 100 * n, 90, seq=0, step=n) for n in range(STEPS)]
    steps = [step(n, 100 * n, 100 * (n + 1)) for n in range(STEPS)]
    finding = said(RULE, *(rank_trace(n, comm=comm, steps=steps) for n in range(2)))
    assert finding.status is Status.UNKNOWN


def test_stages_of_a_pipeline_are_not_compared_with_each_other():
    def stage(number: int, arrive: float) -> RankTrace:
        pipe = group(2, id=2, key="pipe", role="pipeline")
        return rank(number, arrive, groups={1: group(2), 2: pipe})

    finding = said(RULE, stage(0, 30), stage(1, 80))
    assert finding.status is Status.NOT_APPLICABLE
    assert "different pipeline stages" in finding.summary


def test_a_late_rank_of_a_stage_is_named_and_not_its_tensor_parallel_peer():
    """Rank 1 is late to its peer 0; both are late to the data-parallel groups of the stage."""

    def placed(number: int) -> RankTrace:
        comm, steps = [], []
        for n in range(STEPS):
            at, late = 100.0 * n, 40 * (number == 1)
            met = 40 * (number < 2)
            comm.append(sync("all_reduce", at + 10 + late, 5 + met - late, group=2, seq=n, step=n))
            comm.append(sync("all_reduce", at + 20 + met, 60 - met, group=3, seq=n, step=n))
            steps.append(step(n, at, at + 100))
        tensor = [number // 2 * 2, number // 2 * 2 + 1]
        data = [number % 2, number % 2 + 2]
        groups = {
            2: group(4, id=2, key=f"tp {tensor}", role="tensor", ranks=tensor),
            3: group(4, id=3, key=f"dp {data}", role="data", ranks=data),
            4: group(4, id=4, key=f"pp {number}", role="pipeline", ranks=[number, number + 4]),
        }
        return rank_trace(number, 4, comm=comm, steps=steps, groups=groups)

    finding = said(RULE, *map(placed, range(4)))
    assert (finding.status, finding.ranks) == (Status.FAIL, (1,))
    assert "by 40.0 ms per step" in finding.summary


def test_the_rank_that_works_longer_is_named_and_not_the_stage_that_receives_from_it():
    """Ranks 0 and 1 are a stage, 2 and 3 the next: rank 1 waits for a gradient of rank 3."""

    def placed(number: int) -> RankTrace:
        late = {1: 40, 3: 38}.get(number, 0)
        comm, steps = [], []
        for n in range(STEPS):
            at = 100.0 * n
            if number == 1:
                comm.append(sync("recv", at + 20, 40, group=4, peer=3, seq=n, step=n))
            comm.append(sync("all_reduce", at + 20 + late, 60 - late, group=3, seq=n, step=n))
            steps.append(step(n, at, at + 100))
        data = [number // 2 * 2, number // 2 * 2 + 1]
        pipe = [number % 2, number % 2 + 2]
        groups = {
            3: group(4, id=3, key=f"dp {data}", role="data", ranks=data),
            4: group(4, id=4, key=f"pp {pipe}", role="pipeline", ranks=pipe),
        }
        return rank_trace(number, 4, comm=comm, steps=steps, groups=groups)

    finding = said(RULE, *map(placed, range(4)))
    assert (finding.status, finding.ranks) == (Status.FAIL, (3,))


def test_waits_that_nobody_saw_leave_it_open():
    head = [header(n, device="cuda") for n in range(2)]
    traces = [rank(n, arrive, head=head[n]) for n, arrive in enumerate((30, 80))]
    assert said(RULE, *traces).status is Status.NOT_APPLICABLE
