"""A discriminator that accumulates over two micro-steps and a generator that does not, in turns."""

import deepspeed
import torch

from tests.dist.leaving import leave_group

ROUNDS = 4


def engine(stage: int, accumulation: int) -> deepspeed.DeepSpeedEngine:
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.Linear(32, 32))
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage},
    }
    made, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    return made


def update(engine: deepspeed.DeepSpeedEngine, output: torch.Tensor) -> None:
    engine.backward(output.float().pow(2).mean())
    engine.step()


def main() -> None:
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    discriminator, generator = engine(1, 2), engine(2, 1)
    for _ in range(ROUNDS):
        noise = torch.randn(2, 32, dtype=torch.bfloat16)
        update(discriminator, discriminator(noise))
        update(generator, generator(noise))
    discriminator.destroy()
    generator.destroy()
    leave_group()


if __name__ == "__main__":
    main()
