from __future__ import annotations

import pytest

from dsprof.findings.finding import Status
from dsprof.rules.memory.oversized_bucket import OversizedBucket
from dsprof.trace.device_counters import PEAK_RESERVED, RETRIES
from tests.factories.memory import GIB, on_device
from tests.factories.trace import assert_reached_at, engine, judged, rank_trace, said

RULE = OversizedBucket()

MILLION = 1_000_000


def run(parameters: int = 100 * MILLION, stage: int = 2, retries: int = 0, **zero):
    config = engine(stage, **zero)
    config.parameters = parameters
    counters = {PEAK_RESERVED: 10 * GIB}
    return on_device(counters | {RETRIES: 0}, counters | {RETRIES: retries}, engine=config)


@pytest.mark.parametrize(
    ("stage", "overlap", "wasted"),
    [(1, True, "1.49 GiB of"), (3, True, "763 MiB of"), (3, False, "763 MiB of 954 MiB")],
)
def test_buffers_larger_than_the_model_are_known(stage, overlap, wasted):
    finding = said(RULE, run(stage=stage, overlap_comm=overlap))
    assert finding.status is Status.INFO
    assert finding.summary.startswith(wasted)
    assert finding.config_patch == {"zero_optimization": {"reduce_bucket_size": 12_500_000}}


def test_smaller_buckets_are_advised_with_all_that_overlaps_them():
    """Else unhidden-reduction would be what the advice leads to."""
    off = {"overlap_comm": False, "use_multi_rank_bucket_allreduce": False}
    finding = said(RULE, run(**off))
    size = {"reduce_bucket_size": 12_500_000}
    zero = size | dict.fromkeys(off, True)
    assert finding.config_patch == {"zero_optimization": zero}
    assert '12,500,000 and "overlap_comm" to true and "use_multi' in finding.action
    defective, pipeline = run(**off), run(**off)
    defective.header.versions["deepspeed"] = "0.18.9"
    pipeline.engines[1].pipeline_stages = 2  # switches overlap_comm off
    for trace in (defective, pipeline):
        assert said(RULE, trace).config_patch == {"zero_optimization": size}


def test_the_second_buffer_of_overlap_is_not_freed():
    finding = said(RULE, run(3000 * MILLION, retries=3, overlap_comm=False), pressed_share=0.05)
    assert finding.action.endswith("that frees 763 MiB.")


def test_where_memory_is_short_that_is_a_fault():
    finding = said(RULE, run(retries=3))
    assert finding.status is Status.FAIL
    share = pytest.approx(10**9 / (10 << 30))
    assert finding.evidence[0].rows == ((500_000_000, 10**8, 1, 10**9, 10 << 30, share),)


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, run(retries=3), wasted_bytes=800_000_000)


def test_where_memory_is_short_a_large_share_can_be_smaller():
    """All rules advise one size, also of a bucket that holds almost the whole model."""
    for parameters in (3000 * MILLION, 450 * MILLION):
        finding = said(RULE, run(parameters, retries=3, overlap_comm=True))
        assert finding.status is Status.FAIL
        assert "19 % of the reserved memory" in finding.summary
        assert finding.config_patch == {"zero_optimization": {"reduce_bucket_size": 50 * MILLION}}


@pytest.mark.parametrize(
    "trace",
    [
        run(3000 * MILLION, overlap_comm=True),
        run(400 * MILLION),
        run(3000 * MILLION, retries=3, reduce_bucket_size=200 * MILLION),
    ],
    ids=["large model", "little wasted", "small share"],
)
def test_useful_buffers_pass(trace):
    assert said(RULE, trace).status is Status.PASS


def test_where_memory_is_short_no_bucket_is_made_larger():
    small = {"retries": 3, "reduce_bucket_size": 50 * MILLION, "overlap_comm": True}
    assert said(RULE, run(3000 * MILLION, **small), pressed_share=0.01).status is Status.PASS
    small["reduce_bucket_size"] += 1
    assert said(RULE, run(3000 * MILLION, **small), pressed_share=0.01).status is Status.FAIL


@pytest.mark.parametrize(
    "trace",
    [
        rank_trace(engine=engine(2)),
        on_device({PEAK_RESERVED: GIB}),
        run(stage=0),
        run(contiguous_gradients=False),
        run(reduce_bucket_size="auto"),
    ],
    ids=["cpu", "no engine", "stage 0", "no buffers", "no number"],
)
def test_it_does_not_apply(trace):
    assert said(RULE, trace).status is Status.NOT_APPLICABLE


def test_without_counters_it_cannot_tell():
    assert said(RULE, on_device(None, engine=engine(2))).status is Status.UNKNOWN
    assert said(RULE, run(parameters=0)).status is Status.UNKNOWN


def test_several_engines_are_judged_each():
    trace = run(parameters=100 * MILLION)
    trace.engines[2] = engine(2, reduce_bucket_size=50 * MILLION)
    trace.engines[2].engine, trace.engines[2].parameters = 2, 100 * MILLION
    finding = said(RULE, trace)
    assert finding.summary.startswith("Engine 1: 763 MiB of")
    trace.engines[2].effective["zero_optimization"]["reduce_bucket_size"] = 500 * MILLION
    assert [one.summary[:9] for one in judged(RULE, trace)] == ["Engine 1:", "Engine 2:"]
