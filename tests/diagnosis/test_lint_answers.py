"""Each thing that DeepSpeed does with a configuration, and the rule that tells it before a run."""

from __future__ import annotations

from typing import Any

import pytest

from dsprof.config.deepspeed import WrittenConfig
from dsprof.diagnosis.lint import lint
from dsprof.findings.finding import Status
from tests.factories.ds_config import rows, zero

IGNORED = (
    *("compress_communication", "gradient_compression", "communication_compression"),
    *("tensor_model_parallel_size", "zero_optimisation", "gradient_clipp1ng", "comm_logger"),
    *("overlap_comm", "reduce_scatter", "fp32_allreduce"),
)
REMOVED = (
    *("sparse_gradients", "amp", "nebula", "compression_training", "quantize_training"),
    *("eigenvalue", "sparse_attention", "elasticity", "graph_harvesting", "curriculum_learning"),
    "progressive_layer_drop",
)
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("zero_optimization.overlap_com", zero(1, overlap_com=True)),
    ("zero_optimization.reduce_bucket_sizee", zero(1, reduce_bucket_sizee=5)),
    ("comms_logger.profall", zero(1) | {"comms_logger": {"profall": True}}),
    ("zero_optimization.mics_shard_size", zero(3, mics_shard_size=2)),
    (
        "zero_optimization.mics_hierarchical_params_gather",
        zero(3, mics_hierarchical_params_gather=True),
    ),
    ("zero_optimization.zeropp_loco_param", zero(3, zeropp_loco_param={})),
    *(
        ("optimizer.type", zero(1) | {"optimizer": {"type": kind}})
        for kind in ("OneBitAdam", "OneBitLamb", "ZeroOneAdam")
    ),
    ("zero_optimization.legacy_stage1", zero(1, legacy_stage1=True)),
    ("zero_optimization.reduce_bucket_size", zero(1, reduce_bucket_size=0)),
    ("zero_optimization.stage", zero(4)),
    ("zero_optimization.allgather_bucket_size", zero(1, allgather_bucket_size=5)),
    ("gradient_predivide_factor", zero(2) | {"gradient_predivide_factor": 2.0}),
    ("prescale_gradients", zero(2) | {"prescale_gradients": True}),
    ("zero_optimization.compute_grad_norm", zero(2, compute_grad_norm=False)),
]
INERT: list[tuple[str, dict[str, Any]]] = [
    ("disable_allgather", {"disable_allgather": True}),
    ("zero_optimization.offload_param", zero(2, offload_param={"device": "cpu"})),
    ("zero_optimization.stage3_prefetch_bucket_size", zero(2, stage3_prefetch_bucket_size=9)),
    ("zero_optimization.zero_hpz_partition_size", zero(2, zero_hpz_partition_size=8)),
    ("zero_optimization.zero_quantized_gradients", zero(2, zero_quantized_gradients=True)),
    (
        "zero_optimization.use_multi_rank_bucket_allreduce",
        zero(3, use_multi_rank_bucket_allreduce=False),
    ),
    ("zero_optimization.round_robin_gradients", zero(3, round_robin_gradients=True)),
    ("zero_optimization.allgather_partitions", zero(2, allgather_partitions=False)),
    ("zero_optimization.allgather_bucket_size", zero(3, allgather_bucket_size=1000)),
    ("zero_optimization.elastic_checkpoint", zero(3, elastic_checkpoint=True)),
    *(
        (f"zero_optimization.{key}", zero(0, **{key: value}))
        for key, value in {
            "overlap_comm": True,
            "reduce_bucket_size": 1000,
            "reduce_scatter": True,
            "contiguous_gradients": True,
        }.items()
    ),
]
OLD: list[tuple[str, dict[str, Any]]] = [
    ("zero_optimization", {"zero_optimization": True}),
    ("zero_optimization.cpu_offload", zero(2, cpu_offload=True)),
    ("zero_optimization.cpu_offload_param", zero(3, cpu_offload_param=True)),
    (
        "zero_optimization.stage3_gather_fp16_weights_on_model_save",
        zero(3, stage3_gather_fp16_weights_on_model_save=True),
    ),
]
AT_ODDS: list[tuple[str, dict[str, Any], str]] = [
    ("zero_optimization.overlap_comm", zero(2, overlap_comm=True), "0.18.4"),
    ("zero_optimization.overlap_comm", zero(1, overlap_comm=True) | {"pipeline": {}}, "0.19.8"),
    (
        "zero_optimization.overlap_comm",
        zero(2, overlap_comm=True, contiguous_gradients=False),
        "0.19.8",
    ),
    *(
        (f"zero_optimization.{key}", zero(1, contiguous_gradients=False, **{key: True}), "0.19.8")
        for key in ("use_multi_rank_bucket_allreduce", "reduce_scatter")
    ),
    (
        "wall_clock_breakdown",
        zero(2, overlap_comm=True) | {"wall_clock_breakdown": True},
        "0.19.8",
    ),
    ("optimizer.type", zero(2) | {"optimizer": {"type": "Muon"}}, "0.19.2"),
    ("tensor_parallel.autotp_size", zero(2) | {"tensor_parallel": {"autotp_size": 2}}, "0.19.8"),
]
UNFILLED = ("zero_optimization.reduce_bucket_size", zero(2, reduce_bucket_size="auto"))


@pytest.mark.parametrize(
    ("rule", "key", "written", "release"),
    [
        *(("unknown-config-key", key, {key: True}, "0.19.8") for key in IGNORED),
        *(("rejected-config", key, {key: {"enabled": False}}, "0.19.8") for key in REMOVED),
        *(("rejected-config", *case, "0.19.8") for case in REFUSED),
        *(("inert-config-key", *case, "0.19.8") for case in INERT),
        *(("deprecated-config-key", *case, "0.19.8") for case in OLD),
        *(("conflicting-config-keys", *case) for case in AT_ODDS),
        ("unfilled-auto-value", *UNFILLED, "0.19.8"),
    ],
)
def test_a_rule_tells_it(rule: str, key: str, written: dict[str, Any], release: str) -> None:
    findings = lint(WrittenConfig(written, {}, True), release)
    told = [one for one in findings if one.status in (Status.FAIL, Status.INFO)]
    assert key in rows([one for one in told if one.rule == rule])
