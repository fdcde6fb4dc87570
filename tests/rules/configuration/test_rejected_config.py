from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.configuration.rejected_config import RejectedConfig
from tests.factories.ds_config import ran, read, rows, zero

RULE = RejectedConfig()

REMOVED = [
    *("sparse_gradients", "amp", "nebula", "compression_training", "quantize_training"),
    *("eigenvalue", "sparse_attention", "elasticity", "graph_harvesting", "curriculum_learning"),
    "progressive_layer_drop",
]
REMOVED_OF_ZERO = ["mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"]
REFUSED = {
    "zero_optimization.overlap_com": zero(overlap_com=True),
    "zero_optimization.offload_optimizer.devise": zero(offload_optimizer={"devise": "cpu"}),
    "comms_logger.profall": {**zero(), "comms_logger": {"profall": True}},
    "optimizer.type": {**zero(), "optimizer": {"type": "OneBitAdam"}},
    "zero_optimization.legacy_stage1": zero(1, legacy_stage1=True),
    "zero_optimization.reduce_bucket_size": zero(reduce_bucket_size=0),
    "zero_optimization.stage": zero(4),
    "zero_optimization.stage=null": {"zero_optimization": {"stage": None, "overlap_comm": True}},
    "zero_optimization.allgather_bucket_size": zero(allgather_bucket_size=101),
    "gradient_predivide_factor": {**zero(), "gradient_predivide_factor": 2.0},
    "prescale_gradients": {**zero(3), "prescale_gradients": True},
    "zero_optimization.compute_grad_norm": zero(compute_grad_norm=False),
    "zero_optimization.offload_optimizer.ratio": zero(offload_optimizer={"ratio": 0.5}),
    "gradient_allreduce_op": {**zero(3), "gradient_allreduce_op": "sum"},
    "fp16.enabled": {**zero(), "fp16": {"enabled": True}, "bf16": {"enabled": True}},
    "communication_data_type": {**zero(), "communication_data_type": "int8"},
    "zero_optimization.contiguous_gradients": zero(contiguous_gradients="ture"),
    "zero_optimization.sub_group_size": zero(3, sub_group_size="1e9"),
    "zero_optimization.offload_param.buffer_count": zero(3, offload_param={"buffer_count": 1.5}),
    "fp16.initial_scale_power": {**zero(), "fp16": {"initial_scale_power": [16]}},
    "zero_optimization.round_robin_gradients": zero(round_robin_gradients=None),
    "optimizer.type=muon": {**zero(3), "optimizer": {"type": "Muon"}},
    "bf16.bf16_optimizer_states": {**zero(), "bf16": {"bf16_optimizer_states": True}},
    "zero_optimization.cpu_offload": zero(cpu_offload=False, offload_optimizer={}),
    "zero_optimization": {"zero_optimization": [2]},
    "activation_checkpointing": {**zero(), "activation_checkpointing": None},
    "compile": {**zero(), "compile": False},
    "optimizer.params.max_grad_norm": {
        **zero(),
        "optimizer": {"type": "Adam", "params": {"torch_adam": True, "max_grad_norm": 1.0}},
    },
    "optimizer.type=unknown": {**zero(0), "optimizer": {"type": "adamv"}},
    "optimizer.type=untested": {**zero(), "optimizer": {"type": "SGD", "params": {"lr": 0.1}}},
    "scheduler.type": {**zero(0), "scheduler": {"type": "warmup"}},
    "scheduler.type=torch": {
        **zero(1),
        "scheduler": {"type": "StepLR", "params": {"step_size": 1}},
    },
    "scheduler.type=object": {**zero(0), "scheduler": {"type": {"name": "WarmupLR"}}},
    "data_types.buffer_dtype": {
        **zero(),
        "bf16": {"enabled": True},
        "data_types": {"buffer_dtype": "int4"},
    },
    "zero_optimization.stage3_prefetch_bucket_size": zero(3, stage3_prefetch_bucket_size=-1),
    "zero_optimization.offload_param.device": zero(3, offload_param={"device": "disk"}),
    "zero_optimization.offload_optimizer": zero(offload_optimizer="cpu"),
    "checkpoint.tag_validation": {**zero(), "checkpoint": {"tag_validation": "yes"}},
    "gradient_allreduce_op=max": {**zero(), "gradient_allreduce_op": "max"},
    "torch_autocast.dtype": {**zero(), "torch_autocast": {"enabled": True, "dtype": "fp8"}},
    "wall_clock_breakdown": {**zero(), "wall_clock_breakdown": "true"},
    "bf16.bf16_master_weights_and_grads": {
        **zero(1),
        "bf16": {"enabled": True, "bf16_master_weights_and_grads": True},
    },
    "zero_optimization.zenflow": zero(2, zenflow={"topk_ratio": 0.1}),
    "prescale_gradients=1": {**zero(), "prescale_gradients": 1},
    "managed_gradient_accumulation": {
        **zero(1, overlap_comm=True),
        "managed_gradient_accumulation": False,
    },
    "optimizer.type=auto": {**zero(3, reduce_scatter=False), "optimizer": {"type": "auto"}},
    "prescale_gradients=auto": {**zero(), "prescale_gradients": "auto"},
    "bf16": {"bf16": "auto"},
    "fp16.enabled=bfloat16": {**zero(), "fp16": {"enabled": True}, "bfloat16": {"enabled": True}},
    "scheduler.params": {**zero(), "scheduler": {"type": "WarmupLR"}},
    "scheduler.params.total_num_steps": {
        **zero(),
        "scheduler": {"type": "WarmupDecayLR", "params": {}},
    },
    "data_types.param_dtype": {**zero(), "data_types": {"param_dtype": "bf16"}},
    "data_types.grad_accum_dtype": {**zero(0), "data_types": {"grad_accum_dtype": "bf16"}},
    "zero_optimization.offload_param.nvme_path": zero(3, offload_param={"device": "nvme"}),
    "zero_optimization.zenflow.offload": zero(
        2, offload_optimizer={"device": "cpu"}, zenflow={"offload": True}
    ),
    "zero_optimization.zenflow.select_interval": zero(
        2, offload_optimizer={"device": "cpu"}, zenflow={"select_interval": 4}
    ),
    "zero_optimization.zero_quantized_weights": {
        **zero(3, zero_quantized_weights=True),
        "torch_autocast": {"enabled": True},
    },
    "optimizer.params": {
        **zero(2, offload_optimizer={"device": "cpu"}, zenflow={}),
        "optimizer": {"type": "AdamW"},
    },
    "fp16.loss_scale_window": {**zero(), "fp16": {"enabled": True, "loss_scale_window": 0}},
    "fp16.min_loss_scale": {**zero(), "fp16": {"min_loss_scale": True}},
    "compile.passes": {**zero(), "compile": {"passes": ["z2"]}},
    "sequence_parallel_size": {**zero(), "sequence_parallel_size": 0},
    "weight_quantization.bits": {**zero(), "weight_quantization": {"bits": 8}},
    "expert_parallel.autoep_size": {
        **zero(),
        "expert_parallel": {"enabled": True, "autoep_size": "auto"},
    },
    "expert_parallel.comm_backend": {
        **zero(),
        "expert_parallel": {"enabled": True, "comm_backend": "nccl"},
    },
    "expert_parallel.load_balance_coeff": {
        **zero(),
        "expert_parallel": {"load_balance_coeff": 0.1},
    },
    "expert_parallel.gate_up_impl": {
        **zero(),
        "expert_parallel": {"enabled": True, "gate_up_impl": "fused", "use_grouped_mm": False},
    },
    "expert_parallel.preset_model": {
        **zero(),
        "expert_parallel": {"enabled": True, "preset_model": "mixtral"},
        "tensor_parallel": {"preset_model": "llama"},
    },
    "scheduler.params.warmup_min_ratio": {
        **zero(),
        "scheduler": {"type": "WarmupLR", "params": {"warmup_min_ratio": 0.1}},
    },
    "scheduler.params.warmup_num_steps": {
        **zero(),
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}},
    },
    "data_efficiency.data_sampling.dynamic_batching.max_tokens": {
        **zero(),
        "data_efficiency": {"data_sampling": {"dynamic_batching": {"enabled": True}}},
    },
    "tensor_parallel.dtype": {**zero(), "tensor_parallel": {"dtype": "bf16"}},
    "optimizer.params.torch_adam": {
        **zero(0),
        "optimizer": {"type": "Lion", "params": {"torch_adam": False}},
    },
    "optimizer.params.adam_w_mode": {
        **zero(),
        "optimizer": {"type": "Adagrad", "params": {"adam_w_mode": True}},
    },
    "zero_optimization.offload_optimizer.ratio=torch_adam": {
        **zero(3, offload_optimizer={"device": "cpu", "ratio": 0.5}),
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
    },
    "zero_optimization.offload_optimizer.ratio=Adagrad": {
        **zero(3, offload_optimizer={"device": "cpu", "ratio": 0.5}),
        "optimizer": {"type": "Adagrad"},
    },
}
ACCEPTED = [
    {**zero(), "optimizer": {"type": "Muon", "params": {"torch_adam": True, "adam_w_mode": False}}},
    {
        **zero(3, offload_optimizer={"device": "cpu", "ratio": 0.5}),
        "optimizer": {"type": "Adam", "params": {"torch_adam": False}},
    },
    {
        **zero(3, offload_optimizer={"device": "none", "ratio": 0.5}),
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
    },
    zero(1, allgather_bucket_size=100, stage3_max_live_parameters=1e9),
    zero("auto", compute_grad_norm="auto", reduce_bucket_size="auto"),
    {**zero(1), "prescale_gradients": True, "gradient_predivide_factor": 2.0},
    {**zero(2, reduce_scatter=False), "prescale_gradients": True},
    {**zero(2, compute_grad_norm=False), "gradient_clipping": 0},
    {**zero(), "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}},
    {**zero(), "communication_data_type": "BF16"},
    zero("2", reduce_bucket_size=5e8),
    zero(3, sub_group_size="1000", overlap_comm=None, contiguous_gradients="yes"),
    zero(2, round_robin_gradients=1, offload_optimizer={"ratio": True, "pin_memory": 0.0}),
    zero(2.0),
    {**zero(), "aio": None},
    {"zero_optimization": True},
    zero(0, legacy_stage1=True),
    {**zero(), "bf16": None, "timers": []},
    {**zero(0), "optimizer": {"type": "SGD", "params": {"lr": 0.1}}},
    {
        **zero(),
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_allow_untested_optimizer": True,
    },
    {**zero(), "optimizer": {"type": "Adagrad", "params": {"lr": 0.1}}},
    {**zero(1, overlap_comm="no"), "managed_gradient_accumulation": False},
    {**zero(2, leaf_module=None, offload_optimizer=None), "gradient_allreduce_op": "SUM"},
    {**zero(0), "scheduler": {"type": "StepLR", "params": {"step_size": 1}}},
    {**zero(), "optimizer": {"params": {"max_grad_norm": 1.0}}},  # of no optimizer
    zero(3, overlap_comm="auto", reduce_scatter="auto"),
    {**zero(), "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}},
    {**zero(), "fp16": {"loss_scale_window": 0}},
    {**zero(2, cpu_offload=True, zenflow={}), "optimizer": {"type": "AdamW", "params": {}}},
    *({**zero(), name: "auto"} for name in ("comet", "csv_monitor", "tensorboard", "wandb")),
    {**zero(), "expert_parallel": {"autoep_size": "auto"}},  # off
    {**zero(), "compile": {"passes": ["z1"]}, "expert_parallel": None, "vocabulary_size": 100},
]
FILLED_IN = [
    {**zero(2, compute_grad_norm=False), "gradient_clipping": "auto"},
]


@pytest.mark.parametrize("key", REMOVED)
def test_removed_blocks_are_refused_even_if_they_are_off(key):
    (finding,) = read(RULE, {**zero(), key: {"enabled": False}})
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert list(rows([finding])) == [key]


@pytest.mark.parametrize("key", REMOVED_OF_ZERO)
def test_removed_keys_of_zero_are_refused(key):
    assert list(rows(read(RULE, zero(3, **{key: 1})))) == [f"zero_optimization.{key}"]


@pytest.mark.parametrize(("key", "written"), REFUSED.items())
def test_what_stops_the_engine_is_named(key, written):
    (finding,) = read(RULE, written)
    assert finding.status is Status.FAIL
    assert list(rows([finding])) == [key.partition("=")[0]]


@pytest.mark.parametrize(
    ("spec", "must"),
    [
        ("row", "must be an object"),
        ({"partition_type": "diagonal"}, "partition_type must be one of column, row, skip"),
        ({"shape": 3}, "shape must be a list"),
        ({"shape": [3]}, ""),
        ({"shape": [3], "partition_type": "row"}, "below 1: shape has 1 dimension,"),
        ({"shape": [-1, [2, 1]]}, "at partition_dim, and nowhere else"),
        ({"shape": [[2, 1], -1]}, ""),
        ({"shape": [0, -1]}, "must be whole numbers above 0, or -1"),
    ],
)
def test_a_partition_that_autotp_refuses_is_named_with_its_number(spec, must):
    parts = {"partition_config": {"layer_specs": [{"patterns": ["x"]}, spec]}}
    (finding,) = read(RULE, {**zero(), "tensor_parallel": {"autotp_size": 2, **parts}})
    assert (finding.status is Status.FAIL) is bool(must)
    assert must in "".join(rows([finding]).values())
    off = read(RULE, {**zero(), "tensor_parallel": {"autotp_size": 1, **parts}})
    assert off[0].status is Status.PASS


def test_a_release_that_does_not_read_a_section_refuses_nothing_in_it():
    written = {**zero(), "expert_parallel": {"enabled": True, "autoep_size": "auto"}}
    assert read(RULE, written, "0.19.0")[0].status is Status.PASS


@pytest.mark.parametrize("written", [*ACCEPTED, *FILLED_IN])
def test_what_deepspeed_accepts_passes(written):
    assert read(RULE, written)[0].status is Status.PASS


def test_a_misspelt_key_brings_the_right_one():
    findings = read(RULE, zero(3, stage3_param_persitence_threshold=1))
    assert "did you mean stage3_param_persistence_threshold?" in findings[0].cause


@pytest.mark.parametrize(
    ("version", "refused"), [("0.19.7", False), ("0.19.8", True), ("0.20.1", True), ("", True)]
)
def test_the_release_decides(version, refused):
    (finding,) = read(RULE, {**zero(), "elasticity": {}}, version)
    assert (finding.status is Status.FAIL) is refused
    assert finding.confidence == ("" if not refused else "high" if version else "medium")


def test_sections_that_were_not_strict_yet_refuse_nothing():
    written = {**zero(), "fp16": {"enabled": True, "fp16": True}}
    assert read(RULE, written, "0.16.9")[0].status is Status.PASS
    assert read(RULE, written, "0.17.6")[0].status is Status.FAIL


def test_of_an_engine_that_runs_a_later_refusal_is_information():
    (finding,) = ran(RULE, {**zero(), "elasticity": {}, "unheard_of": 1}, "0.18.9")
    assert finding.status is Status.INFO
    assert rows([finding])["elasticity"].startswith("refused from 0.19.8 on")


def test_an_engine_that_runs_was_not_refused():
    assert ran(RULE, zero(overlap_com=True))[0].status is Status.PASS


@pytest.mark.parametrize(
    ("version", "status"), [("0.19.6", Status.PASS), ("0.19.7", Status.FAIL), ("", Status.FAIL)]
)
def test_a_value_is_refused_from_the_release_on_that_refuses_it(version, status):
    written = {**zero(), "optimizer": {"type": "OneBitAdam"}}
    assert read(RULE, written, version)[0].status is status


def test_how_bold_a_hint_may_be_is_a_threshold():
    written = zero(2, overlap_com=True)
    (finding,) = read(RULE, written, similarity=0.99)
    assert "did you mean" not in finding.cause
    assert "did you mean overlap_comm?" in read(RULE, written)[0].cause


def test_a_key_with_two_mistakes_is_named_once():
    config = {**zero(1), "bf16": {"enabled": True, "bf16_master_weights_and_grads": True}}
    config["optimizer"] = {"type": "AdamW", "params": {"torch_adam": True}}
    (finding,) = read(RULE, config)
    assert finding.summary.count("bf16_master_weights_and_grads") == 1
    assert len(finding.evidence[0].rows) == 2


@pytest.mark.parametrize(("stage", "says"), [(0, "the name of a class"), (2, "others need")])
def test_an_optimizer_is_advised_that_the_stage_takes(stage, says):
    (finding,) = read(RULE, {**zero(stage), "optimizer": {"type": "adamv"}})
    assert says in finding.cause
