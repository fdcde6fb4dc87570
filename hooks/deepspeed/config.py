"""A DeepSpeed engine: its configuration as written and as in force."""

from __future__ import annotations

from enum import Enum
from typing import Any

from dsprof.trace.schema import EngineConfig, ParameterLayout

_MODELS = {  # sections that pydantic read, and the attribute that each is in
    "zero_optimization": "zero_config",
    "bf16": "bfloat16_config",
    "fp16": "float16_config",
}
_OBJECTS = {  # sections whose attributes are their keys
    "activation_checkpointing": "activation_checkpointing_config",
    "flops_profiler": "flops_profiler_config",
}
_PARTS = {  # sections of which each key has an attribute of its own
    "bf16": {"enabled": "bfloat16_enabled"},  # before DeepSpeed 0.17
    "fp16": {"enabled": "fp16_enabled"},  # likewise
    "data_types": {"grad_accum_dtype": "grad_accum_dtype"},
    "optimizer": {"type": "optimizer_name", "params": "optimizer_params"},
    "scheduler": {"type": "scheduler_name", "params": "scheduler_params"},
}
_SETTINGS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "communication_data_type",
    "prescale_gradients",
    "gradient_predivide_factor",
    "sparse_gradients_enabled",
    "wall_clock_breakdown",
    "gradient_allreduce_op",
    "memory_breakdown",
    "steps_per_print",
    "zero_allow_untested_optimizer",
)


def describe(engine: Any, number: int) -> EngineConfig:
    """Return the description of an engine, in plain values."""
    config = getattr(engine, "_config", None)
    parameters = [p for p in engine.module.parameters() if p.requires_grad]
    dtype = _dtype(parameters[0].dtype) if parameters else ""
    return EngineConfig(
        engine=number,
        written=_plain(getattr(config, "_param_dict", {})),
        effective=_effective(config),
        kind=type(engine).__name__,
        optimizer=type(engine.optimizer).__name__ if engine.optimizer is not None else "",
        parameters=sum(getattr(p, "ds_numel", p.numel()) for p in parameters),
        parameter_dtype=dtype,
        communication_dtype=_dtype(getattr(engine, "communication_data_type", "")),
        layout=_layout(engine),
        pipeline_stages=getattr(engine, "num_stages", 0),
        experts_apart=_experts_apart(engine.module),
    )


def _effective(config: Any) -> dict[str, Any]:
    """Return what DeepSpeed made of a configuration, by the keys that users write."""
    found: dict[str, Any] = {}
    for key, attribute in _MODELS.items():
        found[key] = _plain(getattr(config, attribute, None))
    for key, attribute in _OBJECTS.items():
        found[key] = _plain(getattr(getattr(config, attribute, None), "__dict__", None))
    for key, attributes in _PARTS.items():
        held = {name: getattr(config, attribute, None) for name, attribute in attributes.items()}
        if found.get(key) is None and any(value is not None for value in held.values()):
            found[key] = _plain(held)
    found |= {name: _plain(getattr(config, name, None)) for name in _SETTINGS}
    return {key: value for key, value in found.items() if value is not None}


def _experts_apart(module: Any) -> int:
    """Count lists of experts that ZeRO-3 would gather separately.

    Models keep them in a `ModuleList` named "experts"; those in one tensor are gathered together.
    """
    found, known, left = 0, {id(module)}, [module]
    while left:
        for name, child in getattr(left.pop(), "named_children", tuple)():
            if id(child) not in known and not getattr(child, "_z3_leaf", False):
                is_list = name == "experts" and type(child).__name__ == "ModuleList"
                found += is_list and len(child) > 1
                known.add(id(child))
                left.append(child)
    return found


def _layout(engine: Any) -> ParameterLayout:
    """Return how much is flattened, gathered and kept; all 0 where no ZeRO optimizer is."""
    sharded = [p for p in engine.module.parameters() if hasattr(p, "ds_numel")]
    kept = [p for p in sharded if getattr(p, "ds_persist", False)]
    whole, persistent = sum(map(_padded, sharded)), sum(map(_padded, kept))
    return ParameterLayout(
        flat=() if sharded else _flat(engine.optimizer),
        padded=sum(_padded(p) for p in sharded if p.requires_grad),
        gathered=whole - persistent,
        persistent=persistent,
        persistent_parameters=len(kept),
    )


def _flat(optimizer: Any) -> tuple[int, ...]:
    """Return the elements of each flat buffer that is shared by two ranks or more."""
    buffers = getattr(optimizer, "bit16_groups_flat", getattr(optimizer, "bf16_groups_flat", ()))
    groups = getattr(optimizer, "real_dp_process_group", ())
    alone = [getattr(group, "size", lambda: 0)() == 1 for group in groups]
    alone += [False] * (len(buffers) - len(alone))
    return tuple(one.numel() for one, kept in zip(buffers, alone, strict=False) if not kept)


def _padded(parameter: Any) -> int:
    """Return the elements of a parameter, filled up to equal shares of all ranks."""
    aligned_size = getattr(parameter, "aligned_size", None)
    return int(aligned_size() if aligned_size is not None else parameter.ds_numel)


def _dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _plain(value: Any) -> Any:
    """Turn a configuration into what JSON can say; what it cannot becomes a string."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", by_alias=True)
    elif hasattr(value, "__fields__"):  # of pydantic's first version: DeepSpeed before 0.15
        value = value.dict(by_alias=True)
    value = value.value if isinstance(value, Enum) else value
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    for plain in (bool, int, float):  # DeepSpeed has integers of its own, which write themselves
        if isinstance(value, plain):
            return plain(value)
    return None if value is None else str(value)
