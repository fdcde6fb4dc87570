"""Trains a small network with plain DistributedDataParallel on CPU; nothing here knows of dsprof.

DSPROF=1 python -m torch.distributed.run --standalone --nproc-per-node 2 examples/ddp.py
dsprof report dsprof-out
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 50
WIDTH = 512


def main() -> None:
    dist.init_process_group("gloo")
    train()
    dist.barrier()  # as in examples/deepspeed_zero.py
    dist.destroy_process_group()


def train() -> None:
    """Train with a model that is gone before its process group is.

    Where DDP releases the group last, torch 2.13 waits with the GIL for gloo's threads, which may
    wait for the GIL: the process hangs.
    """
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(WIDTH, 1)), bucket_cap_mb=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(STEPS):
        batch = torch.randn(256, WIDTH, generator=generator)
        loss = nn.functional.mse_loss(model(batch).squeeze(1), batch.square().mean(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1:3d}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
