"""Trains under DDP until the file that is named exists; rank 1 comes late to each step."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import dsprof


def main(out: str, end: str) -> None:
    dsprof.enable(out=out)
    dist.init_process_group("gloo")
    train(end)
    dist.destroy_process_group()


def train(end: str) -> None:
    """Train with a model that is gone before its process group is, as in examples/ddp.py."""
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    is_over = torch.zeros(1)
    while not is_over:
        time.sleep(0.05 * dist.get_rank())
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        is_over[0] = Path(end).exists()
        dist.all_reduce(is_over)


if __name__ == "__main__":
    main(*sys.argv[1:])
