from __future__ import annotations

import pytest

from dsprof.findings.finding import Status
from dsprof.rules.overlap.unhidden_reduction import UnhiddenReduction
from tests.factories.device_run import device_rank, synchronisations
from tests.factories.trace import assert_reached_at, engine, header, said, zero_rank

RULE = UnhiddenReduction()


def rank(stage: int = 2, buckets: int = 4, blocked_ms: float = 20, **zero):
    return device_rank(engine=engine(stage, **zero), buckets=buckets, blocked_ms=blocked_ms)


@pytest.mark.parametrize(
    ("stage", "why"), [(1, "after backward"), (2, "stream that backward runs on")]
)
def test_overlap_that_is_off_fails_with_a_patch(stage, why):
    finding = said(RULE, rank(stage))
    assert finding.status is Status.FAIL
    assert why in finding.cause
    assert finding.config_patch == {"zero_optimization": {"overlap_comm": True}}
    assert finding.saving_ms_per_step == (pytest.approx(7.5), pytest.approx(15))
    assert finding.evidence[0].rows == ((4.0, 20.0, 0.0),)


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, rank(1), held_share=0.2)


@pytest.mark.parametrize("key", ["contiguous_gradients", "use_multi_rank_bucket_allreduce"])
def test_a_stop_at_each_bucket_fails_with_its_key(key):
    stops = synchronisations(4, 0.1)
    config = engine(2, overlap_comm=True, **{key: False})
    finding = said(RULE, device_rank(engine=config, buckets=4, stalls=stops))
    assert finding.status is Status.FAIL
    assert f"{key} is false" in finding.cause
    assert finding.config_patch == {"zero_optimization": {key: True}}
    assert finding.evidence[0].rows[0][2] == 4.0


def test_whole_buckets_stop_nothing():
    keys = {"reduce_scatter": False, "use_multi_rank_bucket_allreduce": False}
    assert said(RULE, rank(overlap_comm=True, **keys)).config_patch is None


def test_one_reduction_has_nothing_to_hide_behind():
    finding = said(RULE, rank(buckets=1))
    assert (finding.status, finding.config_patch) == (Status.INFO, None)
    assert finding.saving_ms_per_step is None
    assert "giant-bucket" in finding.action


def test_one_bucket_in_each_of_four_backwards_is_one():
    trace = rank()
    trace.collectives.micro_step[:] = 6 * [0, 1, 2, 3]
    assert said(RULE, trace).status is Status.INFO
    trace.collectives.micro_step[:] = 6 * [0, 0, 1, 1]
    low, high = said(RULE, trace).saving_ms_per_step
    assert (low, high) == (pytest.approx(5), pytest.approx(10))  # half of what four buckets hide


def test_reductions_to_four_owners_are_one_bucket():
    trace = rank(use_multi_rank_bucket_allreduce=False)
    trace.flushes = trace.flushes[::4]
    assert said(RULE, trace).saving_ms_per_step is None


def test_what_holds_with_every_key_set_is_information():
    finding = said(RULE, rank(overlap_comm=True))
    assert (finding.status, finding.config_patch) == (Status.INFO, None)
    assert (finding.saving_ms_per_step, "8364" in finding.cause) == (None, True)


@pytest.mark.parametrize(
    ("release", "names_it"), [("0.18.4", True), ("0.18.5", False), ("", False)]
)
def test_a_release_that_hides_nothing_is_named(release, names_it):
    trace = rank(overlap_comm=True)
    trace.header.versions["deepspeed"] = release
    finding = said(RULE, trace)
    assert (finding.status, "7804" in finding.cause) == (Status.INFO, names_it)


def test_a_release_at_fault_is_left_before_anything_overlaps():
    trace = rank()
    trace.header.versions["deepspeed"] = "0.17.3"
    assert "Upgrade to DeepSpeed 0.19.0 or later first: from 0.17.2" in said(RULE, trace).action
    assert "0.19.0" not in said(RULE, rank()).action


def test_short_reductions_and_one_bucket_pass():
    assert said(RULE, rank(blocked_ms=2)).status is Status.PASS
    assert said(RULE, rank(buckets=1, overlap_comm=True)).status is Status.PASS


def test_a_cpu_other_stages_and_pipelines_do_not_apply():
    assert said(RULE, zero_rank(comm_ms=30)).status is Status.NOT_APPLICABLE
    assert said(RULE, rank(stage=3)).status is Status.NOT_APPLICABLE
    assert said(RULE, device_rank()).status is Status.NOT_APPLICABLE
    pipeline = engine(1)
    pipeline.pipeline_stages = 2
    assert said(RULE, device_rank(engine=pipeline)).status is Status.NOT_APPLICABLE


def test_time_that_was_not_measured_is_unknown():
    head = header(device="cuda", backend="nccl")
    assert said(RULE, zero_rank(comm_ms=30, head=head)).status is Status.UNKNOWN


def test_the_share_is_a_threshold():
    assert said(RULE, rank(), held_share=0.3).status is Status.PASS
