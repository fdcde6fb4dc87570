"""Makes an engine of each configuration on standard input; prints the errors as JSON, "" if none.

An error of DeepSpeed's own command line or of torch would end the program. Nothing is compiled, and
the device is taken to support every precision: neither says anything of a configuration.
"""

from __future__ import annotations

import functools
import gc
import json
import logging
import sys
from typing import Any
from unittest.mock import MagicMock

import cpuinfo
import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.ops import op_builder
from deepspeed.ops.op_builder.builder import OpBuilder


def main() -> None:
    logging.disable(logging.CRITICAL)
    deepspeed.init_distributed("gloo")
    accelerator = get_accelerator()
    accelerator.is_fp16_supported = accelerator.is_bf16_supported = lambda: True
    for builder in (OpBuilder, *vars(op_builder).values()):
        if isinstance(builder, type) and issubclass(builder, OpBuilder):
            builder.load = lambda self, verbose=True: MagicMock()
    torch.compiler.set_stance("force_eager")
    # An Adam on the CPU starts processes to learn what CPU it is; stage 3 collects garbage.
    cpuinfo.get_cpu_info = functools.cache(cpuinfo.get_cpu_info)
    gc.freeze()
    with open(sys.argv[1]) as file:
        errors = [error_of(config) for config in json.load(file)]
    with open(sys.argv[2], "w") as file:
        json.dump(errors, file)


def error_of(config: dict[str, Any]) -> str:
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "Adam", "params": {}},
        **config,
    }
    section = config["optimizer"]
    model = torch.nn.Linear(4, 4)
    is_named = isinstance(section, dict) and section.get("type") is not None
    own = None if is_named else torch.optim.Adam(model.parameters())
    try:
        deepspeed.initialize(
            model=model, model_parameters=model.parameters(), optimizer=own, config=config
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    main()
