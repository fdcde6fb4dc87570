from __future__ import annotations

import pytest

from dsprof.analysis.aggregates import idle_causes
from dsprof.findings.finding import Severity, Status
from dsprof.rules.overlap.device_idle import REMEDIES, DeviceIdle
from tests.factories import kineto
from tests.factories.device import busy, rank, sampled
from tests.factories.trace import MS, assert_reached_at, rank_trace, said

RULE = DeviceIdle()


def test_an_idle_device_fails():
    finding = said(RULE, busy(compute=40, comm=20, world_size=1))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert "40 % of the measured steps" in finding.summary
    causes, ranks = (table.rows for table in finding.evidence)
    assert causes == (("not recorded", 80_000_000, 1.0),)
    assert ranks == ((0, 80_000_000, 80_000_000, 40_000_000, 0, 8),)


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(
        RULE, busy(compute=40, comm=20, world_size=1), idle_share=0.4, severe_share=0.4
    )


def test_a_device_with_next_to_nothing_to_do_is_severe():
    assert said(RULE, busy(compute=4, comm=1, world_size=1)).severity is Severity.HIGH


def test_a_busy_device_passes():
    assert said(RULE, busy(compute=80, comm=15, world_size=1)).status is Status.PASS


def test_one_idle_rank_among_busy_ones_fails():
    ranks = [busy(rank, compute=4 if rank == 2 else 90, comm=5, world_size=4) for rank in range(4)]
    finding = said(RULE, *ranks)
    assert (finding.status, finding.severity, finding.ranks) == (
        Status.FAIL,
        Severity.HIGH,
        (2,),
    )
    assert "idle 26 % of the measured steps (mean over ranks; 91 % on rank 2)" in finding.summary
    assert finding.problem == "The device of rank 2 is idle 91 % of the measured steps"


def test_waiting_in_a_collective_is_not_idle():
    assert said(RULE, busy(compute=10, comm=85, world_size=1)).status is Status.PASS


@pytest.mark.parametrize("steps", [0, 1])
def test_what_may_be_start_up_is_not_severe(steps):
    marked = [kineto.step(n, 0, 1000) for n in range(steps)]
    events = [*marked, kineto.kernel("gemm", 0, 1), kineto.kernel("gemm", 999, 1)]
    finding = said(RULE, rank(events, world_size=1))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert finding.confidence == "low"
    assert "start-up may be part of this" in finding.summary


def steps_of(*compute: float):
    """Steps of 100 ms with so much work each."""
    events = [kineto.step(n, 100 * n, 100) for n in range(len(compute))]
    return [*events, *(kineto.kernel("gemm", 100 * n, ms) for n, ms in enumerate(compute))]


def test_start_up_and_warm_up_are_named_apart():
    early = kineto.kernel("init", -2000, 1)
    finding = said(RULE, rank([early, *steps_of(5, 5, 96, 96)], world_size=1))
    assert finding.status is Status.PASS
    assert "idle 4 % of the measured steps" in finding.summary
    assert "Excluded: 2.20 s of start-up and warm-up, 99.5 % idle" in finding.summary


def test_a_busy_warm_up_hides_no_idle_steps():
    busy_before = kineto.kernel("init", -2000, 2000)
    finding = said(RULE, rank([busy_before, *steps_of(95, 95, 40, 43)], world_size=1))
    assert finding.status is Status.FAIL
    assert "idle 58 % of the measured steps" in finding.summary


def test_files_that_are_whole_are_judged_beside_a_sample():
    idle = busy(0, compute=40, comm=20)
    assert said(RULE, idle, sampled(1)).status is Status.FAIL


def test_a_sample_says_nothing():
    assert said(RULE, sampled(world_size=1)).status is Status.UNKNOWN


def test_traces_without_a_device_do_not_apply():
    assert said(RULE, rank_trace()).status is Status.NOT_APPLICABLE
    assert said(RULE, rank([], world_size=1)).status is Status.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("call", "doing", "action"),
    [
        ("hipFree", "allocating and freeing memory (99 %", "empty_cache() where the step calls it"),
        ("cudaMemcpyAsync", "blocked in copies (99 %", "pinned memory"),
        ("enumerate(DataLoader)#x", "waiting for the data loader (99 %", "num_workers"),
        ("cuModuleLoadData", "compiling and loading kernels (99 %", "warm-up"),
    ],
)
def test_what_the_host_did_meanwhile_is_named_and_helped(call, doing, action):
    calls = [kineto.span("cuda_runtime", call, 10 + 1100 * n, 1100) for n in range(3)]
    events = [kineto.kernel("gemm", 0, 10), *calls]
    finding = said(RULE, rank([*events, kineto.kernel("gemm", 3310 + 30, 10)], world_size=1))
    assert finding.status is Status.FAIL
    assert doing in finding.summary
    assert action in finding.action
    assert finding.evidence[0].rows[0][1] == 3300 * MS


def test_there_is_a_remedy_for_every_cause():
    others = {idle_causes.ELSEWHERE, idle_causes.PYTHON, idle_causes.UNRECORDED}
    assert REMEDIES.keys() == {*idle_causes.NAMES.values(), idle_causes.NO_HOST} | others


def test_without_a_record_of_the_host_no_cause_is_claimed():
    finding = said(RULE, rank(steps_of(4, 4, 4, 4), world_size=1))
    assert "not recorded (100 %" in finding.summary
    assert "the files contain no calls of the host" in finding.cause
    assert finding.confidence == "low"


def test_of_a_single_call_it_is_unknown_whether_it_recurs():
    call = kineto.span("cuda_runtime", "cudaFree", 205, 95)
    finding = said(RULE, rank([*steps_of(96, 96, 5, 96), call], world_size=1), idle_share=0.4)
    assert finding.fix == "Profile more steps, after a warm-up"
    assert "The longest call of each rank takes 100 % of this time" in finding.cause
    assert finding.action.startswith("Profile more steps, after a warm-up. If it recurs, remove")
    assert finding.confidence == "low"


def test_a_process_whose_devices_take_turns_needs_no_faster_host():
    others = [kineto.kernel("gemm", 100 * n + 40, 30) | {"pid": 1} for n in range(4)]
    finding = said(RULE, rank([*steps_of(40, 40, 40, 40), *others], world_size=1))
    assert finding.evidence[0].rows[0] == ("keeping other devices busy", 60 * MS, 0.5)
    assert "take turns" in finding.cause


def test_of_many_ranks_the_most_idle_are_listed():
    ranks = (busy(rank, compute=40 - rank, comm=20, world_size=17) for rank in range(17))
    rows = said(RULE, *ranks).evidence[1].rows
    assert [row[0] for row in rows] == list(range(16, 0, -1))
