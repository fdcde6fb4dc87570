"""A small DeepSpeed model for tests: the same weights, data and losses in every run."""

from collections.abc import Iterator

import deepspeed
import torch
import torch.distributed as dist

ACCUMULATION = 2


def build(stage: int, width: int = 256, **zero: object) -> deepspeed.DeepSpeedEngine:
    """Return an engine of four linear layers under ZeRO `stage`."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4)))
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": ACCUMULATION,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {
            "stage": stage,
            "contiguous_gradients": True,
            "reduce_bucket_size": 140_000,
            "allgather_bucket_size": 100_000,
            "stage3_param_persistence_threshold": 0,
            **zero,
        },
    }
    engine, *_ = deepspeed.initialize(model=model, config=config)
    return engine


def losses(engine: deepspeed.DeepSpeedEngine, steps: int, width: int = 256) -> Iterator[float]:
    """Train for `steps` optimizer steps; yield the last loss of each as the step ends."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        for _ in range(ACCUMULATION):
            batch = torch.randn(2, width, generator=generator).to(engine.device, torch.bfloat16)
            loss = engine(batch).float().pow(2).mean()
            engine.backward(loss)
            engine.step()
        yield loss.item()
