"""Trains one small model under DeepSpeed configurations that differ from the truth table's.

Argument: a folder. Each variation becomes a recording in a folder of its own.
"""

import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch

import dsprof
from tests.dist.leaving import leave_group
from tests.dist.zero_variations import VARIATIONS

STEPS = 4
ACCUMULATION = 2


class Model(torch.nn.Module):
    """Linear layers: the first `frozen` do not learn, the last `unused` take no part."""

    def __init__(self, width: int, frozen: int, unused: int) -> None:
        super().__init__()
        self.used = 4 - unused
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(4))
        for layer in self.layers[:frozen]:
            layer.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[: self.used]:
            x = layer(x)
        return x


def build(
    stage: int,
    zero: dict[str, Any] | None = None,
    width: int = 256,
    groups: int = 1,
    frozen: int = 0,
    unused: int = 0,
    **changes: Any,
) -> deepspeed.DeepSpeedEngine:
    torch.manual_seed(0)
    model = Model(width, frozen, unused)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": ACCUMULATION,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": 140_000,
            "stage3_param_persistence_threshold": 0,
            **(zero or {}),
        },
        **changes,
    }
    learning = [p for p in model.parameters() if p.requires_grad]
    parts = [{"params": learning[n::groups]} for n in range(groups)]
    optimizer = torch.optim.AdamW(parts, lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


def train(engine: deepspeed.DeepSpeedEngine, width: int) -> None:
    dtype = next(engine.module.parameters()).dtype
    for _ in range(STEPS * engine.gradient_accumulation_steps()):
        loss = engine(torch.randn(2, width).to(engine.device, dtype)).float().pow(2).mean()
        engine.backward(loss)
        engine.step()


def main() -> None:
    folder = Path(sys.argv[1])
    deepspeed.init_distributed(dist_backend="gloo")
    for name, settings in VARIATIONS.items():
        dsprof.enable(out=str(folder / name))
        engine = build(**settings)
        train(engine, settings.get("width", 256))
        dsprof.disable()
        engine.destroy()
    leave_group()


if __name__ == "__main__":
    main()
