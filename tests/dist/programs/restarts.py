"""Trains with a checkpoint after every 4th step; rank 1 raises in step 6 of the first start."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, EVERY, FAILS_IN = 12, 4, 6


def main(folder: Path) -> None:
    starts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # Over torchrun's store gloo may meet the address of a process of the start before, and hang.
    store = dist.FileStore(str(folder / f"store{starts}"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    train(folder, rank, starts)
    dist.destroy_process_group()


def train(folder: Path, rank: int, starts: int) -> None:
    """Train with a model that is gone before its process group is, as in examples/ddp.py."""
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.Adam(model.parameters())
    saved, step = folder / "checkpoint.pt", 0
    if saved.exists():
        found = torch.load(saved)
        optimizer.load_state_dict(found["optimizer"])
        step = found["step"]
    while step < STEPS:
        model(torch.randn(4, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % EVERY == 0:
            dist.barrier()
            if rank == 0:
                torch.save({"optimizer": optimizer.state_dict(), "step": step}, saved)
            dist.barrier()
        if (rank, step, starts) == (1, FAILS_IN, 0):
            raise ValueError("loss is NaN")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
