"""Trains a small network with FSDP2 (fully_shard) on CPU; nothing here knows of dsprof.

DSPROF=1 python -m torch.distributed.run --standalone --nproc-per-node 2 examples/fsdp.py
dsprof report dsprof-out
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

STEPS = 50
WIDTH = 512


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(6)]
    model = nn.Sequential(*blocks, nn.Linear(WIDTH, 1))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
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
    dist.barrier()  # as in examples/deepspeed_zero.py
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
