"""Trains ZeRO-3 engines, evaluation in between, and counts the parameters that DeepSpeed frees.

Argument: the folder for traces, and for `freed.<rank>.json`: elements by engine and phase.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.zero import partition_parameters

import dsprof
from tests.dist.leaving import leave_group

STEPS, MICRO_STEPS = 3, 3
WORDS, WIDTH = 64, 32
KEPT_SHORT = {"stage3_max_reuse_distance": 0, "stage3_max_live_parameters": 0}

freed: Counter[str] = Counter()
now = ""


def config(zero: dict[str, Any]) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": MICRO_STEPS,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": WIDTH + 1, **zero},
    }


def count_what_is_freed() -> None:
    free = partition_parameters.free_param

    def counting(param: Any) -> None:
        if param.ds_status.name == "AVAILABLE":
            freed[now] += param.ds_numel
        free(param)

    partition_parameters.free_param = counting


def train(number: int, zero: dict[str, Any]) -> None:
    global now
    # The first layer's input needs no gradient: the hook that lets its parameters go is not called.
    model = torch.nn.Sequential(
        torch.nn.Embedding(WORDS, WIDTH),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.Linear(WIDTH, WIDTH),
    )
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config(zero)
    )
    words = torch.randint(0, WORDS, (2, 8))
    for _ in range(STEPS):
        for _ in range(MICRO_STEPS):
            now = f"{number} forward"
            loss = engine(words).pow(2).mean()
            now = f"{number} backward"
            engine.backward(loss)
            now = f"{number} step"
            engine.step()
        engine.eval()
        now = f"{number} forward"
        with torch.no_grad():
            engine(words)
        engine.train()
    now = ""
    engine.destroy()


def main() -> None:
    out = Path(sys.argv[1])
    count_what_is_freed()
    dsprof.enable(out=str(out))
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    for number, zero in enumerate(({}, KEPT_SHORT)):
        train(number, zero)
    freed.pop("", None)
    (out / f"freed.{dist.get_rank()}.json").write_text(json.dumps(freed))
    dist.barrier()
    leave_group()


if __name__ == "__main__":
    main()
