"""Prints the configuration keys that the installed DeepSpeed asks for, by section, as JSON.

Sections that are pydantic models tell their fields. Of the others a dictionary that notes what is
looked up in it tells, however the code looks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from deepspeed.comm.config import CommsLoggerConfig
from deepspeed.compile.config import CompileConfig
from deepspeed.inference.config import WeightQuantConfig
from deepspeed.monitor.config import CometConfig, CSVConfig, TensorBoardConfig, WandbConfig
from deepspeed.runtime import config as deepspeed_config
from deepspeed.runtime.config import DeepSpeedConfig, HybridEngineConfig
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.tensor_parallel.config import TPConfig, TPTrainingConfig
from deepspeed.runtime.zenflow.zenflow_config import ZenFlowConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.leaf_module_config import DeepSpeedZeroLeafModuleConfig
from deepspeed.runtime.zero.offload_config import (
    DeepSpeedZeroOffloadOptimizerConfig,
    DeepSpeedZeroOffloadParamConfig,
)
from deepspeed.utils.config import DeepSpeedThroughputTimerConfig

MODELS = {
    "bf16": DeepSpeedBF16Config,
    "bfloat16": DeepSpeedBF16Config,
    "comet": CometConfig,
    "comms_logger": CommsLoggerConfig,
    "compile": CompileConfig,
    "csv_monitor": CSVConfig,
    "fp16": DeepSpeedFP16Config,
    "hybrid_engine": HybridEngineConfig,
    "tensor_parallel": TPTrainingConfig,
    "tensor_parallel.tensor_parallel": TPConfig,
    "tensor_parallel.tp": TPConfig,
    "tensorboard": TensorBoardConfig,
    "timers.throughput": DeepSpeedThroughputTimerConfig,
    "wandb": WandbConfig,
    "weight_quantization": WeightQuantConfig,
    "zero_optimization": DeepSpeedZeroConfig,
    "zero_optimization.leaf_module": DeepSpeedZeroLeafModuleConfig,
    "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
    "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
    "zero_optimization.zenflow": ZenFlowConfig,
}
KINDS = {
    bool: "bool",
    int: "int",
    float: "float",
    bool | None: "bool?",
    int | None: "int?",
}
LOOKED_UP = {
    "activation_checkpointing": {},
    "aio": {},
    "autotuning": {},
    "checkpoint": {},
    "data_types": {},
    "flops_profiler": {"enabled": False},
    "optimizer": {"type": "adam", "params": {}},
    "scheduler": {"type": "WarmupLR", "params": {}},
    "timers": {},
    "torch_autocast": {},
}


class Noting(dict):  # type: ignore[type-arg]
    """A dictionary that notes the keys that somebody asks for."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def keys(self) -> Any:
        return self

    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def __copy__(self) -> Noting:
        return self


def main() -> None:
    found = {name: fields(model) for name, model in MODELS.items()}
    sections = {name: Noting(values) for name, values in LOOKED_UP.items()}
    top = Noting({"train_batch_size": 1, **sections})
    DeepSpeedConfig(top)
    found[""] = sorted(top.asked)
    found |= {name: sorted(section.asked) for name, section in sections.items()}
    removed = [
        *deepspeed_config._REMOVED_TOP_LEVEL_CONFIG_KEYS,
        *(f"zero_optimization.{key}" for key in deepspeed_config._REMOVED_ZERO_CONFIG_KEYS),
    ]
    strict = [name for name, model in MODELS.items() if model.model_config["extra"] == "forbid"]
    kinds = {name: kinds_of(model) for name, model in MODELS.items()}
    print(json.dumps({"keys": found, "removed": removed, "strict": strict, "kinds": kinds}))


def fields(model: Any) -> list[str]:
    names = set(model.model_fields)
    return sorted(names | {field.alias for field in model.model_fields.values() if field.alias})


def kinds_of(model: Any) -> dict[str, str]:
    """The numbers and switches of a model; "?" marks those that may be null."""
    return {
        name: KINDS[field.annotation]
        for field_name, field in model.model_fields.items()
        if field.annotation in KINDS
        for name in filter(None, (field_name, field.alias))
    }


if __name__ == "__main__":
    main()
