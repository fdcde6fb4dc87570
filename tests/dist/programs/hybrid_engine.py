"""Generates and trains in turns on DeepSpeed's hybrid engine at ZeRO stage 3."""

import deepspeed
import torch

from tests.dist.leaving import leave_group


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))

    def generate(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = self(x)
        return x


def main() -> None:
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "bf16": {"enabled": True},
        "hybrid_engine": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "stage3_param_persistence_threshold": 0,
            "stage3_max_live_parameters": 0,
            "stage3_max_reuse_distance": 0,
        },
    }
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    engine._generate = model.generate  # DeepSpeed sets it for layers of transformers alone
    for _ in range(3):
        engine.eval()
        with torch.no_grad():
            engine.generate(torch.ones(2, 32, dtype=torch.bfloat16))
        engine.train()
        loss = engine(torch.ones(2, 32, dtype=torch.bfloat16)).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
    engine.destroy()
    leave_group()


if __name__ == "__main__":
    main()
