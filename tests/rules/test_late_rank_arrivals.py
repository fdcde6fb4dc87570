"""late-rank by the arrivals that dsprof recorded."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from dsprof.analysis.aggregates import arrivals
from dsprof.analysis.aggregates.run import Run
from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.late_rank import RULE
from dsprof.rules.runner import judge
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.selection import Selection
from tests.factories.trace import (
    MS,
    assert_reached_at,
    engine,
    group,
    header,
    issued,
    rank_trace,
    said,
    span,
    step,
    summary,
    sync,
    zero_rank,
)
from tests.rules.steps import stepwise

STEPS = 12


def rank(number: int, arrive: float, *, before: float = 0, world: int = 2, **fields) -> RankTrace:
    """Steps of 100 ms: forward from `before`, a reduction from `arrive` to 90 ms, nothing after."""
    comm, spans = [], []
    for n in range(STEPS):
        at = 100 * n
        comm.append(sync("all_reduce", at + arrive, 90 - arrive, seq=n + 1, step=n))
        spans.append(span("forward", at + before, at + 90, n))
    steps = [step(n, 100 * n, 100 * (n + 1)) for n in range(STEPS)]
    given = {"groups": {1: group(world)}, "spans": spans, "steps": steps, **fields}
    return rank_trace(number, world, comm=comm, engine=engine(), **given)


def test_the_rank_that_computes_longer_is_named_with_what_it_costs():
    finding = said(RULE, rank(0, 30), rank(1, 80))
    assert (finding.status, finding.ranks) == (Status.FAIL, (1,))
    assert (
        "Rank 1 delays the others by 50.0 ms per step (50 %): last in 10 of the 10"
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
    """Every fifth of 60 steps has an all-reduce, as with local SGD; two are warm-up."""
    traces = []
    for number in range(2):
        comm = [
            sync("all_reduce", 100 * n + 30 + at, 60 - at, seq=k + 1, step=n)
            for k, n in enumerate(range(4, 60, 5))
            for at in (shifts[k % len(shifts)] * number,)
        ]
        steps = [step(n, 100 * n, 100 * (n + 1)) for n in range(60)]
        traces.append(rank_trace(number, comm=comm, steps=steps, engine=engine()))
    finding = said(RULE, *traces, seconds=99.0)
    late = sum(bool(shifts[k % len(shifts)]) for k in range(12))
    assert finding.problem.startswith(f"Rank 1 may delay {late} of 58 steps by 30.0 ms")
    assert finding.summary.endswith("In the other 46 measured steps no rank communicates.")


def test_waits_of_a_run_that_communicates_in_some_steps_are_a_mean_over_all():
    """Every fifth step has an all-reduce, to which the two ranks come last in turn."""
    traces = []
    for number in range(2):
        comm = [
            sync("all_reduce", 100 * n + 30 + at, 60 - at, seq=k + 1, step=n)
            for k, n in enumerate(range(4, 60, 5))
            for at in (20 * ((k + number) % 2),)
        ]
        steps = [step(n, 100 * n, 100 * (n + 1)) for n in range(60)]
        traces.append(rank_trace(number, comm=comm, steps=steps, engine=engine()))
    finding = said(RULE, *traces)
    assert finding.status is Status.PASS
    assert "Ranks wait 2.07 ms per step for the last arrival (2.1 %)" in finding.summary
    assert finding.summary.endswith("In the other 46 measured steps no rank communicates.")


def test_a_rank_that_is_last_in_most_steps_does_not_delay_every_step() -> None:
    """It comes last in 20 of 26 steps; in the others rank 0 does, by a little."""
    late = [0 if n % 4 == 0 else 30 for n in range(28)]
    traces = []
    for number, shifts in enumerate(([5] * 28, late)):
        comm = [
            sync("all_reduce", 100 * n + 30 + at, 60 - at, seq=n + 1, step=n)
            for n, at in enumerate(shifts)
        ]
        steps = [step(n, 100 * n, 100 * (n + 1)) for n in range(28)]
        traces.append(rank_trace(number, comm=comm, steps=steps, engine=engine()))
    finding = said(RULE, *traces)
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


def at(*arrivals: float) -> list[RankTrace]:
    return [rank(n, arrive, world=len(arrivals)) for n, arrive in enumerate(arrivals)]


@pytest.mark.parametrize("late", [(2, 3), (4, 5, 6, 7), (6, 7)])
def test_ranks_that_are_late_together_are_named(late):
    world = 4 if late == (2, 3) else 8
    finding = said(RULE, *at(*(80 if n in late else 35 for n in range(world))))
    assert (finding.status, finding.ranks) == (Status.FAIL, late)
    assert "by 45.0 ms per step (45 %)" in finding.summary
    assert "late together in 10 of 10 steps" in finding.summary
    assert "optimizer step take 45.0 ms longer than those of the others" in finding.cause
    assert finding.cause.endswith("or gets less processor time.")


def test_ranks_that_are_late_together_in_half_of_the_steps_are_named_with_their_number():
    def half(number: int) -> RankTrace:
        arrivals = [80 if number > 1 and n % 2 else 35 for n in range(60)]
        comm = [
            sync("all_reduce", 100 * n + at, 90 - at, seq=n + 1, step=n)
            for n, at in enumerate(arrivals)
        ]
        steps = [step(n, 100 * n, 100 * (n + 1)) for n in range(60)]
        return rank_trace(number, 4, comm=comm, steps=steps)

    finding = said(RULE, *map(half, range(4)))
    assert (finding.status, finding.ranks) == (Status.FAIL, (2, 3))
    assert finding.problem == "Ranks 2-3 delay 29 of 58 steps by 45.0 ms"
    assert "by 22.5 ms per step (22 %): late together in 29 of 58 steps" in finding.summary


@pytest.mark.parametrize(
    ("role", "late", "fix"),
    [
        ("expert", (1, 5), "Balance the tokens over experts"),
        ("context", (3, 7), "Give each rank as much attention to compute"),
        ("context", (3, 6), "Compare them with the other ranks"),
        ("data", (1, 5), "Compare them with the other ranks"),
    ],
)
def test_ranks_at_one_place_of_groups_that_divide_the_work_share_its_cause(role, late, fix):
    def grouped(number: int) -> RankTrace:
        members = list(range(4)) if number < 4 else list(range(4, 8))
        mine = group(4, id=1, key=f"{role} {members}", role=role, ranks=members)
        return rank(number, 80 if number in late else 35, world=8, groups={1: mine})

    finding = said(RULE, *map(grouped, range(8)))
    assert (finding.status, finding.ranks, finding.fix) == (Status.FAIL, late, fix)
    shared = f"They are rank {late[0]} of each of the 2 {role} parallel groups: the same "
    assert finding.cause.startswith(shared) is (fix != "Compare them with the other ranks")
    assert finding.explains_ms == pytest.approx(45 * 6 / 8)


def test_ranks_that_wait_for_input_together_are_not_said_to_compute_longer():
    late = [rank(n, 80, before=60, world=4) for n in (2, 3)]
    finding = said(RULE, rank(0, 30, before=10, world=4), rank(1, 30, before=10, world=4), *late)
    assert (finding.status, finding.ranks) == (Status.FAIL, (2, 3))
    assert "spends 50.0 ms more before its forward passes" in finding.cause
    assert finding.action.startswith("Look at data loading on rank")


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

    def arriving(number: int) -> RankTrace:
        at = [80 if number == 3 else 78 if number == 2 and n >= 6 else 30 for n in range(STEPS)]
        comm = [sync("all_reduce", 100 * n + ms, 90 - ms, seq=n + 1, step=n)
                for n, ms in enumerate(at)]  # fmt: skip
        steps = [step(n, 100 * n, 100 * (n + 1)) for n in range(STEPS)]
        return rank_trace(number, 5, comm=comm, steps=steps, groups={1: group(5)})

    finding = said(RULE, *(arriving(n) for n in range(5)))
    assert (finding.status, finding.ranks) == (Status.FAIL, (3,))
    assert finding.saving_ms_per_step == pytest.approx((25, 50))


def test_a_rank_that_is_mostly_late_beside_others_saves_nothing_that_is_known():
    """Rank 3 is late in all steps, in a few of them as the only one."""

    def arriving(number: int) -> tuple[float, ...]:
        beside = [number == 3 or (n >= 10 and number == n % 3) for n in range(60)]
        return tuple(80 if is_late else 30 for is_late in beside)

    finding = said(RULE, *jittering(60, *(arriving(n) for n in range(16))))
    assert (finding.status, finding.ranks) == (Status.FAIL, (3,))
    assert finding.problem == "Rank 3 delays a step by 50.0 ms on average (50 %)"
    assert finding.saving_ms_per_step is None
    assert finding.explains_ms == pytest.approx(50 * 15 / 16)
    assert finding.confidence == "medium"


def jittering(steps: int, *arrivals: tuple[float, ...]) -> list[RankTrace]:
    """Each rank arrives at its times in turn, in steps of 100 ms."""

    def arriving(number: int, times: tuple[float, ...]) -> RankTrace:
        at = [times[n % len(times)] for n in range(steps)]
        comm = [sync("all_reduce", 100 * n + ms, 90 - ms, seq=n + 1, step=n)
                for n, ms in enumerate(at)]  # fmt: skip
        marks = [step(n, 100 * n, 100 * (n + 1)) for n in range(steps)]
        groups = {1: group(len(arrivals))}
        return rank_trace(number, len(arrivals), comm=comm, steps=marks, groups=groups)

    return [arriving(n, times) for n, times in enumerate(arrivals)]


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


def moving(*stretches: range, ranks: int = 4, hosts: int = 0, steps: int = 60) -> list[RankTrace]:
    """In each stretch the next rank is late by 60 ms, or all ranks of the next host."""
    size = ranks // hosts if hosts else 1

    def times(number: int) -> tuple[float, ...]:
        late = stretches[number // size] if number // size < len(stretches) else ()
        return tuple(20 + 60 * (n in late) + (n + number) % 3 for n in range(steps))

    made = jittering(steps, *(times(number) for number in range(ranks)))
    for number, trace in enumerate(made):
        trace.header = header(number, ranks, host=f"node{number // size}" if hosts else "node0")
    return made


def test_ranks_that_are_late_one_after_another_are_named_with_their_steps():
    finding = said(RULE, *moving(range(30), range(30, 45), range(45, 60)))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert finding.problem.endswith("for one rank after another")
    assert "rank 0 in steps 2 to 29, rank 1 in steps 30 to 44, rank 2" in finding.summary
    assert finding.fix == "Check what else ran on rank 0 in steps 2 to 29"
    assert [row[:3] for row in finding.evidence[1].rows] == [
        ("0", 2, 29),
        ("1", 30, 44),
        ("2", 45, 59),
    ]


def test_of_many_turns_the_costliest_are_listed_in_order_of_time():
    ends = [10, *range(24, 290, 14)]  # the first turns are shorter
    turns = [range(begin, end) for begin, end in pairwise([0, *ends])]
    finding = said(RULE, *moving(*turns, ranks=len(turns), steps=ends[-1]), seconds=0.5)
    table = finding.evidence[1]
    assert table.caption.endswith(f"the 16 costliest of {len(turns)} turns")
    assert "0" not in [row[0] for row in table.rows]
    assert list(finding.steps) == sorted(row[1] for row in table.rows)


def test_a_rank_that_was_late_for_most_of_the_run_hides_no_later_one():
    finding = said(RULE, *moving(range(45), range(45, 60)))
    assert "rank 0 in steps 2 to 44, rank 1 in steps 45 to 59" in finding.summary


def test_a_rank_that_is_late_again_after_another_one_leads():
    """It may be late all the time, and the other one more so for a while."""
    late = tuple(60 if n < 20 or n >= 32 else 40 for n in range(60))
    more = tuple(22 if n < 20 or n >= 32 else 80 for n in range(60))
    finding = said(RULE, *jittering(60, late, more, (20, 21, 22), (21, 20)))
    assert (finding.ranks, finding.problem[:18]) == ((0,), "Rank 0 delays most")


def test_two_ranks_whose_delays_wander_are_not_late_one_after_another():
    draws = np.random.default_rng(1).standard_normal((10, 120)) * 4
    for place in range(1, 120):
        draws[:, place] += 0.7 * draws[:, place - 1]
    runs = [jittering(120, (50,), tuple((50 + one).clip(0, 89))) for one in draws]
    titles = [said(RULE, *run, seconds=0.5).title for run in runs]
    assert "Ranks wait for one rank after another" not in titles


def test_in_a_pipeline_a_rank_that_waits_for_another_stage_is_not_called_late():
    traces = moving(range(30), range(30, 60))
    for trace in traces:
        trace.groups[1].role = "data"
        trace.groups[2] = group(4, id=2, key="pipe", role="pipeline")
    assert said(RULE, *traces).status is Status.INFO


def test_hosts_that_are_late_one_after_another_are_named():
    """Each is the last for a while, which bounds its clock."""
    stretches = [range(at, at + 15) for at in range(0, 60, 15)]
    finding = said(RULE, *moving(*stretches, ranks=8, hosts=4))
    assert (finding.status, finding.ranks) == (Status.FAIL, ())
    assert "for one host after another: node0 in steps 2 to 14, node1 in steps" in finding.summary
    assert finding.explains_ms == pytest.approx(58 * 6 / 8, rel=0.1)


def test_ranks_that_are_late_for_less_than_a_second_are_not_named():
    traces = moving(*(range(at, at + 6) for at in (0, 12, 24, 36)), ranks=8)
    assert said(RULE, *traces).status is Status.PASS
    assert said(RULE, *traces, seconds=0.5).status is Status.FAIL


def test_few_steps_of_three_ranks_say_how_many_more_prove_it():
    def ranks(steps: int) -> list[RankTrace]:
        return jittering(steps, (80, 82), *OTHERS[:2])

    finding = said(RULE, *ranks(7), seconds=0.1)
    assert (finding.status, finding.ranks) == (Status.UNKNOWN, (0,))
    assert finding.more_steps
    assert said(RULE, *ranks(7 + finding.more_steps), seconds=0.1).status is Status.FAIL


def test_steps_without_a_late_rank_are_said_and_no_steps_are_asked_for_without_a_number():
    """Only in one step rank 0 stands out; in the others ranks arrive at even distances."""
    ranks = jittering(
        50,
        *(
            tuple(late if n == 10 else usual for n in range(50))
            for late, usual in ((80, 60), (10, 40), (10, 20))
        ),
    )
    finding = said(RULE, *ranks)
    assert (finding.status, finding.fix, finding.more_steps) == (Status.UNKNOWN, "", None)
    assert finding.summary == (
        "Unknown: rank 0 was the only late rank in 1 of 48 steps, in 47 no single rank stands "
        "out, and this may be chance."
    )


def test_ranks_late_together_are_named_though_one_of_them_once_was_the_only_one():
    once = tuple(10 if n == 10 else 80 for n in range(50))
    finding = said(RULE, *jittering(50, (80,), once, (10,), (10,)))
    assert (finding.status, finding.ranks) == (Status.FAIL, (0, 1))


def test_half_a_second_does_not_tell_several_late_ranks_either():
    assert said(RULE, *at(35, 35, 80, 80), seconds=1.1).status is not Status.FAIL
    assert said(RULE, *at(35, 35, 80, 80), step_share=0.5).status is not Status.FAIL


def test_a_rank_that_waits_for_its_input_is_told_apart():
    finding = said(RULE, rank(0, 30), rank(1, 80, before=50))
    assert "spends 50.0 ms more before its forward passes" in finding.cause
    assert "data loading on rank 1" in finding.action


def test_without_phases_the_cause_is_not_guessed():
    finding = said(RULE, rank(0, 30, spans=[]), rank(1, 80, spans=[]))
    assert (finding.status, finding.ranks) == (Status.FAIL, (1,))
    assert "Unknown: whether rank" in finding.cause


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


def turns(number: int, late: tuple[float, float]) -> RankTrace:
    """Ranks 0 and 1 arrive late in every second step, by so many ms."""
    shifts = [late[number] * ((n + number) % 2) for n in range(STEPS)]
    comm = [
        sync("all_reduce", 100 * n + shift, 90 - shift, seq=n + 1, step=n)
        for n, shift in enumerate(shifts)
    ]
    steps = [step(n, 100 * n, 100 * (n + 1)) for n in range(STEPS)]
    return rank_trace(number, comm=comm, steps=steps)


def test_ranks_that_take_turns_are_a_remark_and_nobody_is_named():
    finding = said(RULE, *(turns(number, (50, 50)) for number in range(2)))
    assert (finding.status, finding.ranks) == (Status.INFO, ())
    assert finding.summary.endswith("different ranks arrive last in turn.")


def test_of_ranks_that_take_turns_the_one_that_is_waited_for_longest_is_named():
    """Other findings name it, too: so this one must not seem to say that all cost the same."""
    finding = said(RULE, *(turns(number, (30, 70)) for number in range(2)))
    assert (finding.status, finding.ranks) == (Status.INFO, ())
    assert finding.summary.endswith("; more than two thirds of it is for rank 1.")


def test_of_two_ranks_that_wait_for_one_stall_none_takes_turns() -> None:
    """They were said to arrive last in turn; noise makes either rank later in some steps."""

    def late(which: int) -> stepwise.Extra:
        return lambda n: 8 * (n % 2 == which) + 9000 * (which == 1 and n == 31)

    traces = [stepwise.rank(n, computing=late(n), waiting=late(1 - n)) for n in range(2)]
    found = said(RULE, *traces)
    assert found.status is Status.PASS
    assert "(31 %, 1.5 % without the 2 longest of 58 steps)" in found.summary
    assert "in turn" in said(RULE, *traces, turns_share=0.01).summary


def test_of_ranks_that_take_turns_alike_none_is_waited_for_longest():
    finding = said(RULE, *(turns(number, (47, 53)) for number in range(2)))
    assert finding.summary.endswith("different ranks arrive last in turn.")


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


def test_a_span_that_the_program_named_is_named_as_the_cause():
    def loading(number: int, load: float) -> RankTrace:
        spans = [span("forward", 100 * n, 100 * n + 90, n) for n in range(STEPS)]
        spans += [
            span("load", 100 * n, 100 * n + load, n, is_annotation=True) for n in range(STEPS)
        ]
        spans += [span("log", 100 * n, 100 * n + 3, n, is_annotation=True) for n in range(STEPS)]
        return rank(number, 30 if number == 0 else 80, spans=spans)

    finding = said(RULE, loading(0, 3.2), loading(1, 43.2))
    assert 'Rank 1 spends 43.2 ms per step, the others 3.20 ms, in "load".' in finding.cause
    assert finding.fix == 'Speed up "load" there'
    assert '"load"' not in said(RULE, loading(0, 3.2), loading(1, 13.2)).cause


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


def test_waits_that_nobody_saw_leave_it_open():
    head = [header(n, device="cuda") for n in range(2)]
    traces = [rank(n, arrive, head=head[n]) for n, arrive in enumerate((30, 80))]
    assert said(RULE, *traces).status is Status.NOT_APPLICABLE


def bare(number: int, first: float, last: float) -> RankTrace:
    """No phases: buckets at `first` and `last`, the last one until 90 ms of a step of 100."""
    comm = []
    for n in range(STEPS):
        comm.append(issued("all_reduce", 100 * n + first, 100 * n + 90, seq=2 * n, step=n,
                           wait=100 * n + last, waited=100 * n + last))  # fmt: skip
        comm.append(sync("all_reduce", 100 * n + last, 90 - last, seq=2 * n + 1, step=n))
    return rank_trace(
        number, comm=comm, steps=[step(n, 100 * n, 100 * n + 100) for n in range(STEPS)]
    )


def test_without_phases_a_rank_that_is_slow_between_collectives_computes_longer():
    finding = said(RULE, bare(0, 10, 30), bare(1, 20, 80))
    assert finding.ranks == (1,)
    assert "50.0 ms longer than those of the others, also between" in finding.cause
    assert finding.evidence[1].rows[0] == (1, 20 * MS, 60 * MS, 10 * MS)


def test_without_phases_a_rank_that_keeps_pace_is_held_up_before():
    finding = said(RULE, bare(0, 10, 30), bare(1, 60, 80))
    assert finding.ranks == (1,)
    assert "collective, of a step 50.0 ms later" in finding.cause
    assert "data loading on rank 1" in finding.action


@pytest.mark.parametrize(
    ("backward", "cause"),
    [
        ((25, 55), "collectives: it computes longer, or gets less processor time."),
        ((60, 75), "waits for input"),
    ],
)
def test_without_forward_what_lies_before_backward_is_not_taken_for_input(backward, cause):
    """A plain loop: backward is seen, forward is not. Both grow alike, or only what is before."""
    begin, arrive = backward
    spans = [span("backward", 100 * n + begin, 100 * n + arrive, n) for n in range(STEPS)]
    usual = [span("backward", 100 * n + 10, 100 * n + 25, n) for n in range(STEPS)]
    finding = said(RULE, rank(0, 25, spans=usual), rank(1, arrive, spans=spans))
    assert finding.ranks == (1,)
    assert cause in finding.cause


def after_rooted(number: int, held: float, op: str, **fields) -> RankTrace:
    """A rank that `op` blocks for `held` ms in each step, before it computes for 30 ms."""
    comm, spans = [], []
    for n in range(STEPS):
        at = 100 * n
        comm.append(sync(op, at, held, seq=2 * n + 1, step=n, **fields))
        spans.append(span("forward", at + held, at + held + 30, n))
        arrive = held + 30
        comm.append(sync("all_reduce", at + arrive, 90 - arrive, seq=2 * n + 2, step=n))
    steps = [step(n, 100 * n, 100 * (n + 1)) for n in range(STEPS)]
    return rank_trace(number, comm=comm, spans=spans, steps=steps)


@pytest.mark.parametrize(
    ("op", "words"),
    [("gather", "receives from all other ranks"), ("broadcast", "sends to all other ranks")],
)
def test_a_rank_that_is_held_as_the_root_is_not_said_to_compute(op, words):
    finding = said(RULE, after_rooted(0, 40, op), after_rooted(1, 2, op))
    assert (finding.status, finding.ranks) == (Status.FAIL, (0,))
    assert f"38.0 ms longer than the others in {op}" in finding.cause
    assert words in finding.cause
    assert finding.fix == f"Call {op} less often"


def test_steps_with_nothing_but_rooted_collectives_are_said_to_have_no_other():
    """Their ranks record a barrier, but before the first step."""
    ranks = [
        rank_trace(
            number,
            comm=[sync("all_reduce", 0, 5, seq=1, step=0)]
            + [sync("reduce", 100 * n, 9, seq=n + 1, step=n) for n in range(1, STEPS)],
            steps=[step(n, 100 * n, 100 * (n + 1)) for n in range(STEPS)],
        )
        for number in range(2)
    ]
    assert "a collective that waits for all ranks" in said(RULE, *ranks).summary


@pytest.mark.parametrize("fields", [{"flush": 1}, {"fetch": 1}])
def test_a_root_of_gradients_or_parameters_is_not_told_to_send_less(fields):
    """ZeRO reduces each partition to the rank that owns it."""
    finding = said(
        RULE, *(after_rooted(n, held, "reduce", **fields) for n, held in enumerate((40, 2)))
    )
    assert (finding.status, finding.ranks) == (Status.FAIL, (0,))
    assert "root" not in finding.cause
