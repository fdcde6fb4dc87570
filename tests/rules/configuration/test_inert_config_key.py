from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.configuration.inert_config_key import InertConfigKey
from tests.factories.ds_config import ran, read, rows, with_status, zero

RULE = InertConfigKey()

MISSED = [
    (0, "overlap_comm", True),
    (2, "offload_param", {"device": "cpu"}),
    (2, "zero_hpz_partition_size", 8),
    (1, "zero_quantized_gradients", True),
    (0, "offload_optimizer", {"device": "cpu"}),
]
LEFTOVERS = [
    (0, "reduce_bucket_size", 5e7),
    (0, "contiguous_gradients", True),
    (0, "overlap_comm", False),
    (2, "stage3_max_live_parameters", 1e9),
    (2, "offload_param", {"device": "none"}),
    (2, "zero_hpz_partition_size", 1),
    (3, "use_multi_rank_bucket_allreduce", False),
    (3, "round_robin_gradients", True),
    (1, "allgather_partitions", True),
    (1, "legacy_stage1", False),
    (2, "allgather_bucket_size", 2e8),
    (3, "allgather_bucket_size", 2e8),
]


@pytest.mark.parametrize("judge", [read, ran])
@pytest.mark.parametrize(("stage", "key", "value"), MISSED)
def test_what_somebody_counts_on_fails(judge, stage, key, value):
    effective = {"zero_optimization": {"stage": stage}}
    more = {"effective": effective} if judge is ran else {}
    (finding,) = judge(RULE, zero(stage, **{key: value}), **more)
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.LOW)
    assert list(rows([finding])) == [f"zero_optimization.{key}"]
    assert f"stage {stage}" in finding.summary.lower()


@pytest.mark.parametrize(("stage", "key", "value"), LEFTOVERS)
def test_harmless_leftovers_are_information(stage, key, value):
    (finding,) = read(RULE, zero(stage, **{key: value}))
    assert finding.status is Status.INFO
    assert list(rows([finding])) == [f"zero_optimization.{key}"]


def test_both_at_once():
    findings = read(RULE, zero(2, offload_param={"device": "cpu"}, sub_group_size=1e9))
    assert list(rows(with_status(findings, Status.FAIL))) == ["zero_optimization.offload_param"]
    assert list(rows(with_status(findings, Status.INFO))) == ["zero_optimization.sub_group_size"]


@pytest.mark.parametrize(
    "written",
    [
        zero(3, offload_param={"device": "cpu"}, zero_hpz_partition_size=8, overlap_comm=True),
        zero(2, overlap_comm=True, round_robin_gradients=True, reduce_scatter=True),
        zero(2, allgather_bucket_size=2e8, zenflow={"topk_ratio": 0.1}),
        {"train_batch_size": 8},
    ],
)
def test_keys_of_this_stage_pass(written):
    assert read(RULE, written)[0].status is Status.PASS


@pytest.mark.parametrize("stage", ["2", 2.0])
def test_a_stage_is_read_as_deepspeed_reads_it(stage):
    (finding,) = read(RULE, zero(stage, offload_param={"device": "cpu"}))
    assert finding.status is Status.FAIL


def test_an_unknown_stage_could_not_tell():
    assert read(RULE, zero("auto", overlap_comm=True))[0].status is Status.UNKNOWN


def test_the_stage_in_force_counts():
    effective = {"zero_optimization": {"stage": 3}}
    findings = ran(RULE, zero("auto", offload_param={"device": "cpu"}), effective=effective)
    assert findings[0].status is Status.PASS


@pytest.mark.parametrize(
    ("stage", "key", "stages"),
    [
        (2, {"zero_hpz_partition_size": 8}, "stage 3"),
        (3, {"round_robin_gradients": True}, "stages 1, 2"),
        (0, {"offload_optimizer": {"device": "cpu"}}, "stages 1, 2, 3"),
    ],
)
def test_the_stages_that_read_a_key_are_listed(stage, key, stages):
    (finding,) = read(RULE, zero(stage, **key))
    said = " ".join((finding.summary, finding.cause, finding.action, str(rows([finding]))))
    assert stages in said


@pytest.mark.parametrize(
    "written",
    [
        zero(2, legacy_stage1=True),
        zero(2, allgather_bucket_size=101),
        zero(3, compute_grad_norm=False),
        zero(2, offload_optimizer={"device": "cpu", "ratio": 0.5}),
        zero(2, offload_optimizer={"device": "nvme", "nvme_path": "/nvme", "buffer_count": 5}),
        zero(2, cpu_offload=True, cpu_offload_use_pin_memory=True),
    ],
)
def test_a_key_that_is_refused_or_renamed_needs_a_change(written):
    """Other rules name it; that no change is needed would be the opposite."""
    assert read(RULE, written)[0].status is Status.PASS
