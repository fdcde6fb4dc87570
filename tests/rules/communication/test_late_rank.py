from __future__ import annotations

from dsprof.rules.communication.late_rank import RULE
from dsprof.rules.rule import Severity, Status
from tests.factories import kineto
from tests.factories.device import busy, rank, sampled
from tests.factories.trace import rank_trace, said


def test_the_rank_with_the_shortest_communication_is_late():
    finding = said(RULE, busy(0, comm=30), busy(1, comm=2))
    assert (finding.status, finding.ranks) == (Status.FAIL, (1,))
    assert "112.0 ms" in finding.summary
    assert finding.severity is Severity.HIGH


def test_ranks_that_wait_alike_pass():
    assert said(RULE, busy(0, comm=30), busy(1, comm=28)).status is Status.PASS


def test_a_recording_that_is_shorter_is_not_late():
    short = rank(kineto.steps(2, 60, 20), 1)
    assert said(RULE, busy(0), short).status is Status.PASS
    late = rank(kineto.steps(2, 60, 2), 1)
    assert said(RULE, busy(0, comm=30), late).ranks == (1,)


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
    slow = said(RULE, busy(0, compute=50, comm=30), busy(1, compute=78, comm=2))
    assert "computing kernels take" in slow.cause
    held = said(RULE, busy(0, compute=50, comm=30), busy(1, compute=50, comm=2))
    assert "Its device has nothing to do for" in held.cause
    assert "data loading" in held.action


def test_a_lateness_that_no_part_explains_is_said_so():
    finding = said(RULE, busy(0, compute=50, comm=30), busy(1, compute=64, comm=2))
    assert finding.ranks == (1,)
    assert "could not be told: its own time is spread" in finding.cause
