"""Configurations of DeepSpeed made from its keys: each key with odd values, and pairs of settings.

They are what a file holds; `filled_in` is what DeepSpeed gets of them through transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from itertools import combinations, product
from typing import Any

from dsprof.rules.knowledge.deepspeed.keys import keys
from dsprof.rules.knowledge.deepspeed.partitions import PARTITION_CONFIG
from dsprof.rules.knowledge.deepspeed.values import SCHEDULERS, takes
from tests.factories.ds_config import zero

Config = dict[str, Any]
Setting = tuple[str, Any]

VALUES = (True, False, 0, -1, 2, 0.5, "x", "", "auto", None, [], {}, ["x"], {"x": 1}, "1e3", "true")
_Z = "zero_optimization."
SETTINGS: tuple[Setting, ...] = (
    *(("optimizer", {"type": name}) for name in ("adam", "AdamW", "Muon")),
    *(("optimizer", {"type": name}) for name in ("SGD", "Adagrad", "Lamb", "Lion", "MuSGD")),
    *(("optimizer", {"type": name}) for name in ("OneBitAdam", "auto", "sgd", "Rprop")),
    ("optimizer", {"type": "AdamW", "params": {"lr": "auto"}}),
    ("optimizer", {"params": {"lr": 1e-3}}),
    ("optimizer.params.max_grad_norm", 1.0),
    *((f"optimizer.params.{key}", True) for key in ("torch_adam", "fp32_optimizer_states")),
    *(("scheduler", {"type": name, "params": {}}) for name in ("WarmupLR", "OneCycle", "auto")),
    ("scheduler", {"type": "StepLR", "params": {"step_size": 1}}),
    ("scheduler", {"type": "WarmupLR"}),
    *((f"{name}.enabled", True) for name in ("fp16", "bf16", "torch_autocast", "bfloat16")),
    *(("fp16.loss_scale", scale) for scale in (0, 128)),
    ("fp16.loss_scale_window", 0),
    *((f"{name}.{name}_master_weights_and_grads", True) for name in ("fp16", "bf16")),
    ("bf16.bf16_optimizer_states", True),
    *(("data_types.grad_accum_dtype", dtype) for dtype in ("fp32", "bf16", "fp16", "int8")),
    *(("data_types.param_dtype", dtype) for dtype in ("fp32", "bf16")),
    *(("communication_data_type", dtype) for dtype in ("fp32", "bf16", "fp16")),
    *((f"{_Z}offload_optimizer.device", device) for device in ("cpu", "nvme", "none")),
    *((f"{_Z}offload_param.device", device) for device in ("cpu", "nvme")),
    (f"{_Z}offload_optimizer.ratio", 0.5),
    (f"{_Z}offload_optimizer.super_offload", True),
    (f"{_Z}cpu_offload", True),
    (f"{_Z}cpu_offload_param", True),
    (f"{_Z}zenflow", {}),
    (f"{_Z}zenflow", {"select_strategy": "step", "select_interval": 4, "update_interval": 2}),
    (f"{_Z}zenflow.offload", True),
    *((f"{_Z}overlap_comm", switch) for switch in (True, False)),
    *((f"{_Z}{key}", False) for key in ("contiguous_gradients", "reduce_scatter")),
    *((f"{_Z}{key}", False) for key in ("compute_grad_norm", "use_multi_rank_bucket_allreduce")),
    *((f"{_Z}{key}", True) for key in ("round_robin_gradients", "parameter_alignment")),
    *((f"{_Z}{key}", True) for key in ("elastic_checkpoint", "legacy_stage1")),
    *((f"{_Z}zero_quantized_{what}", True) for what in ("weights", "gradients")),
    (f"{_Z}zero_quantized_nontrainable_weights", True),
    (f"{_Z}allgather_bucket_size", 101),
    ("gradient_clipping", 0),
    ("prescale_gradients", True),
    ("gradient_predivide_factor", 2.0),
    ("gradient_allreduce_op", "sum"),
    ("managed_gradient_accumulation", False),
    ("zero_allow_untested_optimizer", True),
    ("zero_force_ds_cpu_optimizer", False),
    ("compile.deepcompile", True),
    ("expert_parallel.enabled", True),
    ("tensor_parallel.autotp_size", 1),
    ("pipeline", {}),
    ("data_efficiency", {"enabled": True, "data_routing": {"random_ltd": {"enabled": True}}}),
    ("flops_profiler.enabled", True),
    ("comms_logger.enabled", True),
    ("wall_clock_breakdown", True),
)
"""What goes with some settings and not with others."""


FILLED: Mapping[str, Any] = {
    **dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu"), 1),
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "optimizer.params.lr": 1e-3,
    "optimizer.params.betas": [0.9, 0.999],
    "optimizer.params.eps": 1e-8,
    "optimizer.params.weight_decay": 0.0,
    "scheduler.params.warmup_min_lr": 0,
    "scheduler.params.warmup_max_lr": 1e-3,
    "scheduler.params.warmup_num_steps": 10,
    "scheduler.params.total_num_steps": 100,
    "fp16.enabled": False,
    "bf16.enabled": False,
    f"{_Z}stage": 2,
    f"{_Z}reduce_bucket_size": 1024,
    f"{_Z}stage3_prefetch_bucket_size": 921,
    f"{_Z}stage3_param_persistence_threshold": 320,
    f"{_Z}stage3_gather_16bit_weights_on_model_save": False,
    **{f"{_Z}offload_{part}.device": "none" for part in ("optimizer", "param")},
    **{f"{_Z}offload_{part}.nvme_path": None for part in ("optimizer", "param")},
}


def with_settings(stage: int, *settings: Setting) -> Config:
    """A configuration at a stage with these values of dotted keys."""
    config: Config = zero(stage)
    for path, value in settings:
        *sections, key = path.split(".")
        place = config
        for section in sections:
            place = place.setdefault(section, {})
        merged = isinstance(place.get(key), Mapping) and isinstance(value, Mapping)
        place[key] = {**place[key], **value} if merged else deepcopy(value)
    return config


def of_single_keys() -> Iterator[Config]:
    """Each key that DeepSpeed reads, with values that fit and values that do not."""
    for path, value in product(sorted({*keys(), *takes()} - {f"{_Z}stage"}), VALUES):
        yield with_settings(3 if "stage3" in path or "zero" in path else 2, (path, value))


def of_pairs() -> Iterator[Config]:
    """Two settings at each stage."""
    for stage, (one, other) in product(range(4), combinations(SETTINGS, 2)):
        if one[0] != other[0]:
            yield with_settings(stage, one, other)


_E = "expert_parallel."
_TWO = ("tensor_parallel.autotp_size", 2)
_SHAPES = (
    [3, -1],
    [[2, 1], -1],
    [-1, [2, 1]],
    [[], -1],
    [0, 2],
    [[[1]], 1],
    ["x"],
    [],
    "x",
    3,
    [1.5],
)
_DATA = "data_efficiency.data_sampling."


def of_sections() -> Iterator[Config]:
    """Sections that DeepSpeed hands to parts of it: experts, partitions, schedulers, data."""
    experts = [path for path in takes() if path.startswith(_E)]
    words = {word for path in experts for form in takes()[path].forms for word in form.split("|")}
    for path, value in product(experts, (*VALUES, 1, *sorted(words))):
        yield with_settings(2, (f"{_E}enabled", True), (path, value))
        yield with_settings(2, (path, value))
    for one, other in combinations(_OF_EXPERTS, 2):
        if one[0] != other[0]:
            yield with_settings(2, (f"{_E}enabled", True), (f"{_E}autoep_size", 2), one, other)
    kinds = ({}, {"partition_type": "ROW"}, {"partition_type": "diagonal"}, {"partition_type": 1})
    for kind, shape, dim in product(kinds, (*_SHAPES, None), (None, 0, 1, 2, -1, "0")):
        spec = {"patterns": ["x"], "shape": shape, "partition_dim": dim, **kind}
        yield with_settings(2, _TWO, (PARTITION_CONFIG, {"layer_specs": [spec]}))
    for specs, size in product(VALUES, (0, 2)):
        settings = (PARTITION_CONFIG, {"layer_specs": specs}), ("tensor_parallel.autotp_size", size)
        yield with_settings(2, *settings)
    for kind, name in product(SCHEDULERS, sorted(set().union(*SCHEDULERS.values()))):
        needed = {key: 1e-3 for key in SCHEDULERS[kind] if key in ("cycle_min_lr", "cycle_max_lr")}
        if "total_num_steps" in SCHEDULERS[kind]:
            needed["total_num_steps"] = 10
        for value in (1, 0, -1):
            params = {**needed, name: value}
            yield with_settings(2, ("scheduler", {"type": kind, "params": params}))
    for part, value in product(("curriculum_learning", "dynamic_batching"), (True, False, 1, {})):
        yield with_settings(2, (f"{_DATA}{part}", {"enabled": value}))
    for name in ("comet", "csv_monitor", "tensorboard", "wandb"):
        yield with_settings(2, (name, "auto"))


_OF_EXPERTS: tuple[Setting, ...] = (
    _TWO,
    (f"{_E}autoep_size", 1),
    (f"{_E}comm_backend", "deepep"),
    (f"{_E}comm_max_tokens_per_rank", 8),
    (f"{_E}combine_impl", "fused_weighted_sum"),
    (f"{_E}row_weighting_impl", "fused"),
    (f"{_E}gate_up_impl", "fused"),
    (f"{_E}use_grouped_mm", False),
    (f"{_E}async_split_plan", True),
    (f"{_E}preset_model", "mixtral"),
    ("tensor_parallel.preset_model", "llama"),
    ("tensor_parallel.preset_model", "mixtral"),
    ("compile.deepcompile", True),
    ("use_data_before_expert_parallelism", True),
    (f"{_Z}offload_optimizer.device", "cpu"),
    (f"{_Z}offload_optimizer.device", "none"),
    (f"{_Z}offload_param.device", "cpu"),
    (f"{_Z}cpu_offload", True),
)


def filled_in(values: Any, path: str = "") -> Any:
    """A configuration in which "auto" is replaced as the trainer of transformers does."""
    if isinstance(values, Mapping):
        prefix = f"{path}." if path else ""
        return {key: filled_in(value, f"{prefix}{key}") for key, value in values.items()}
    return FILLED.get(path, values) if values == "auto" else values
