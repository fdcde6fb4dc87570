from __future__ import annotations

from dsprof.diagnosis.sections.communication import arrivals
from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.late_rank import LateRank
from dsprof.rules.runner import judge
from dsprof.trace.rank_trace import RankTrace
from tests.factories import kineto
from tests.factories.device import busy, rank, sampled
from tests.factories.trace import assert_reached_at, rank_trace, said, summary

RULE = LateRank()


def arriving(
    number: int,
    at: float,
    compute: float = 50,
    first: int = 0,
    steps: int = 4,
    *,
    is_marked: bool = True,
    **fields,
) -> RankTrace:
    """A rank whose collective begins `at` ms into each step of 100 and ends at 90."""
    events = []
    for one in range(first, steps):
        start = 100.0 * one
        events += [kineto.step(one, start, 100)] * is_marked
        events.append(kineto.kernel(kineto.GEMM, start, compute))
        events.append(kineto.collective(start + at, 90 - at))
    return rank(events, number, **fields)


def test_so_few_steps_as_chance_explains_leave_less_confidence():
    few, enough = (
        said(RULE, arriving(0, 20, 15, steps=steps), arriving(1, 88, 15, steps=steps))
        for steps in (9, 10)
    )
    assert (few.severity, few.confidence) == (Severity.HIGH, "medium")
    assert (enough.severity, enough.confidence) == (Severity.HIGH, "high")


def test_one_step_is_not_every_step_and_its_delay_may_be_that_of_the_profilers():
    finding = said(RULE, arriving(0, 60, steps=1), arriving(1, 88, steps=1))
    assert finding.problem == "Rank 1 delays the others by 28.0 ms (28 %)"
    assert finding.summary.endswith("profilers started at different times.")
    assert finding.confidence == "low"


def test_a_delay_is_a_share_of_the_mean_step_and_of_one_step_it_is_not_grave():
    """The step of the late rank, whose profiler begins late, is shorter than the others'."""
    late = [kineto.step(0, 40, 60), kineto.kernel(kineto.GEMM, 40, 48), kineto.collective(88, 2)]
    finding = said(RULE, arriving(0, 60, steps=1), rank(late, 1))
    assert finding.problem == "Rank 1 delays the others by 28.0 ms (35 %)"
    assert finding.severity is Severity.MEDIUM


def test_the_rank_with_the_shortest_communication_is_late():
    finding = said(RULE, arriving(0, 60), arriving(1, 88))
    assert (finding.status, finding.ranks) == (Status.FAIL, (1,))
    assert finding.summary == (
        "Rank 1 delays the others by 28.0 ms per step (28 %): it arrives last in 2 of 2 "
        "collectives of 2 measured steps. 14 % of the step (mean over ranks) is exposed waiting."
    )
    assert finding.severity is Severity.MEDIUM
    assert finding.evidence[0].rows == (
        (1, 28_000_000, 0, 2_000_000, 48_000_000, 50_000_000),
        (0, 0, 28_000_000, 2_000_000, 20_000_000, 50_000_000),
    )


def test_without_marks_of_steps_figures_are_of_the_recorded_time():
    finding = said(RULE, *(arriving(n, at, is_marked=False) for n, at in enumerate((60, 88))))
    assert finding.problem.startswith("Rank 1 delays the others by 112 ms (")
    assert "by 112 ms of the recorded time (29 %)" in finding.summary
    assert finding.summary.endswith("last in 4 of 4 collectives.")


def test_three_ranks_of_which_each_is_unlike_the_others():
    """The others wait 32 and 27 ms for rank 1, which computes for longer than their median."""
    times = [(40, 45), (8, 77), (30, 50)]
    ranks = [
        busy(number, comm=comm, compute=compute, world_size=3)
        for number, (comm, compute) in enumerate(times)
    ]
    finding = said(RULE, *ranks)
    assert "by 29.5 ms per step (30 %)" in finding.summary
    assert "computing kernels take 29.5 ms longer" in finding.cause
    assert finding.evidence[0].rows == (
        (1, 29_500_000, 0, 8_000_000, 15_000_000, 77_000_000),
        (0, 0, 32_000_000, 8_000_000, 15_000_000, 45_000_000),
        (2, 0, 27_000_000, 3_000_000, 20_000_000, 50_000_000),
    )


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, arriving(0, 60), arriving(1, 88), waited_share=0.28, severe_share=0.28)


def test_what_the_others_wait_is_the_figure_of_the_arrivals():
    """One step of the longer window waits for nobody: a mean per kernel would halve the rest."""
    run = summary(arriving(0, 60), arriving(1, 88, first=1))
    [finding] = judge(run, [RULE])
    [row] = [row for row in arrivals(run).rows if row.rank == 1]
    assert row.caused_ns == 28_000_000
    assert finding.evidence[0].rows[0][:2] == (1, row.caused_ns)


def test_ranks_that_wait_alike_pass():
    assert said(RULE, busy(0, comm=30), busy(1, comm=28)).status is Status.PASS


def test_a_recording_that_is_shorter_is_not_late():
    short = arriving(1, 60, first=2)
    assert said(RULE, arriving(0, 60), short).status is Status.PASS
    late = arriving(1, 88, first=2)
    assert said(RULE, arriving(0, 60), late).ranks == (1,)


def test_windows_without_a_common_collective_do_not_tell():
    short = rank(kineto.steps(2, 60, 2), 1)
    assert said(RULE, busy(0, comm=30), short).status is Status.UNKNOWN


def test_two_quick_ranks_of_three_are_no_single_late_one():
    ranks = [busy(number, comm=comm, world_size=3) for number, comm in enumerate((30, 2, 2.1))]
    assert said(RULE, *ranks).status is Status.PASS


def test_a_wait_that_is_short_beside_the_run_passes():
    assert said(RULE, busy(0, comm=1.5), busy(1, comm=0.5)).status is Status.PASS


def test_a_missing_rank_may_be_the_late_one():
    ranks = [busy(0, comm=30, world_size=3), busy(1, comm=2, world_size=3)]
    finding = said(RULE, *ranks)
    assert (finding.status, finding.ranks) == (Status.UNKNOWN, ())


def test_a_sample_names_nobody():
    assert said(RULE, sampled(0), sampled(1)).status is Status.UNKNOWN


def test_traces_of_the_host_and_single_ranks_do_not_apply():
    assert said(RULE, rank_trace()).status is Status.NOT_APPLICABLE
    assert said(RULE, busy(world_size=1)).status is Status.NOT_APPLICABLE
    silent = [busy(number, comm=0) for number in range(2)]
    assert said(RULE, *silent).status is Status.NOT_APPLICABLE


def test_an_empty_trace_is_no_input():
    assert said(RULE, rank([]), rank([], 1)).status is Status.NOT_APPLICABLE


def test_kernels_that_take_longer_are_told_from_a_device_that_waits_for_its_host():
    slow = said(RULE, arriving(0, 60), arriving(1, 88, compute=78))
    assert "computing kernels take" in slow.cause
    held = said(RULE, arriving(0, 60), arriving(1, 88))
    assert "Its device is idle for" in held.cause
    assert "data loading" in held.action


def test_a_lateness_that_no_part_explains_is_said_so():
    finding = said(RULE, arriving(0, 60), arriving(1, 88, compute=64))
    assert finding.ranks == (1,)
    assert "no part of its step explains the delay" in finding.cause
