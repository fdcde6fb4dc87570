"""Trains a line on two ranks that a library starts from this process; knows nothing of dsprof.

Arguments: `debug_launcher` of Accelerate, or a strategy of Lightning.
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator, debug_launcher
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

STEPS = 8


def train() -> None:
    """Train as Accelerate's users do."""
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(16, 16)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    for _ in range(STEPS):
        accelerator.backward(model(torch.ones(4, 16)).sum())
        optimizer.step()
        optimizer.zero_grad()
    accelerator.end_training()


class Line(LightningModule):
    """The same for Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(16, 16)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return self.line(batch[0]).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(strategy: str) -> None:
    """Train as Lightning's users do."""
    rows = DataLoader(TensorDataset(torch.ones(2 * STEPS, 16)))
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    trainer = Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=1, **quiet)
    trainer.fit(Line(), rows)


if __name__ == "__main__":
    how = sys.argv[1]
    if how == "debug_launcher":
        debug_launcher(train, num_processes=2)
    else:
        fit(how)
