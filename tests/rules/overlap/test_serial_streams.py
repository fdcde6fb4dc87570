from __future__ import annotations

from dsprof.findings.finding import Status
from dsprof.rules.overlap.serial_streams import SerialStreams
from tests.factories.device import busy, rank, sampled
from tests.factories.kineto import kernel, step
from tests.factories.trace import assert_reached_at, rank_trace, said

RULE = SerialStreams()

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


def one_stream(comm: float, compute: float = 50, stream: int = 7):
    events = [kernel("gemm", 0, compute, stream=7), kernel(NCCL, compute, comm, stream=stream)]
    return rank(events, world_size=1)


def test_much_communication_on_the_stream_that_computes_fails():
    finding = said(RULE, one_stream(50))
    assert finding.status is Status.FAIL
    assert "100 % of communication runs on streams that also compute; 50 %" in finding.summary
    assert finding.evidence[0].rows == ((50_000_000, 50_000_000, 1),)


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, one_stream(50), shared_share=1.0, exposed_share=0.5, severe_share=0.5)


def test_less_of_it_is_information_and_little_passes():
    assert said(RULE, one_stream(15)).status is Status.INFO
    assert said(RULE, one_stream(3)).status is Status.PASS


def test_a_stream_of_its_own_passes():
    assert said(RULE, one_stream(50, stream=20)).status is Status.PASS
    assert said(RULE, busy(comm=60, world_size=1)).status is Status.PASS


def test_a_sample_says_nothing_and_without_kernels_it_does_not_apply():
    assert said(RULE, sampled(world_size=1)).status is Status.UNKNOWN
    assert said(RULE, rank_trace()).status is Status.NOT_APPLICABLE
    assert said(RULE, rank([kernel("gemm", 0, 9)], world_size=1)).status is Status.NOT_APPLICABLE


def test_the_measured_steps_are_judged():
    steps = [step(n, 100 * n, 100) for n in range(4)]
    warm_up = [kernel("gemm", 0, 50), kernel(NCCL, 50, 50)]
    later = [event for n in (2, 3) for event in (kernel("gemm", 100 * n, 95),)]
    assert said(RULE, rank([*steps, *warm_up, *later], world_size=1)).status is not Status.FAIL


def test_a_verdict_begins_on_its_threshold():
    half = one_stream(50)
    assert said(RULE, half, exposed_share=0.5, severe_share=0.6).status is Status.INFO
    assert said(RULE, half, shared_share=1.0).status is Status.FAIL
    assert said(RULE, half, severe_share=0.5).status is Status.FAIL
