"""Makes DeepSpeed's configuration of each object in a file; prints the errors as JSON, "" if none.

No engine is made: that takes a device, and libraries that some configurations ask for. What an
engine asks of the sections for experts and for tensor parallelism, which need several ranks, is
asked here, and the scheduler is made.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch
from deepspeed.module_inject.auto_ep_config import validate_autoep_config
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.config import DeepSpeedConfig

RANKS = 5040
"""Which every small size divides."""


def main() -> None:
    logging.disable(logging.CRITICAL)
    print(json.dumps([error_of(config) for config in json.loads(Path(sys.argv[1]).read_text())]))


def error_of(config: dict[str, Any]) -> str:
    try:
        ask_sections(DeepSpeedConfig(config))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def ask_sections(config: DeepSpeedConfig) -> None:
    partitions, zero = config.tensor_parallel_config, config.zero_config
    if config.expert_parallel_config.enabled:
        validate_autoep_config(
            config.expert_parallel_config,
            RANKS,
            1,
            partitions.autotp_size,
            1,
            zero_stage=zero.stage,
            deepcompile_enabled=config.compile_config.deepcompile,
            tp_preset_model=partitions.preset_model,
            use_data_before_expert_parallel=config.use_data_before_expert_parallel_,
            zero_offload_optimizer=zero.offload_optimizer is not None,
            zero_offload_param=zero.offload_param is not None,
        )
    if partitions.autotp_size > 1:
        partitions.get_partition_config_object()
    if scheduler := getattr(lr_schedules, config.scheduler_name or "", None):
        optimizer = torch.optim.Adam(torch.nn.Linear(1, 1).parameters())
        scheduler(optimizer, **config.scheduler_params)


if __name__ == "__main__":
    main()
