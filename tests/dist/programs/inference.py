"""Generates with `deepspeed.init_inference`; nothing is trained."""

import deepspeed
import torch
import torch.distributed as dist

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
            dist.all_reduce(x)  # as a tensor-parallel layer would
        return x


def main() -> None:
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    engine = deepspeed.init_inference(Model(), dtype=torch.float32)
    engine.generate(torch.ones(2, 32))
    leave_group()


if __name__ == "__main__":
    main()
