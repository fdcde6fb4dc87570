"""Makes an engine of each configuration on standard input; prints the errors as JSON, "" if none.

An error of DeepSpeed's own command line or of torch would end the program.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import deepspeed
import torch

OPTIMIZER = {"type": "Adam", "params": {"torch_adam": True}}  # no extension to be compiled


def main() -> None:
    logging.disable(logging.CRITICAL)
    deepspeed.init_distributed("gloo")
    with open(sys.argv[1]) as file:
        errors = [error_of(config) for config in json.load(file)]
    with open(sys.argv[2], "w") as file:
        json.dump(errors, file)


def error_of(config: dict[str, Any]) -> str:
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": OPTIMIZER, **config}
    model = torch.nn.Linear(4, 4)
    try:
        deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    main()
