"""Trains without dsprof and with it: every ZeRO stage, DDP and FSDP2; writes what was computed.

OUT/training.rankN.json: {way to train: {"bare" or "recorded": digests in the order of training}}.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import dsprof
from tests.dist.leaving import leave_group
from tests.dist.programs import small_zero
from tests.dist.programs.digests import watched_training

STEPS = 8


def zero(stage: int) -> None:
    engine = small_zero.build(stage)
    try:
        for loss in small_zero.losses(engine, STEPS):
            torch.tensor(loss)
    finally:
        engine.destroy()


def train(net: nn.Module) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        net(torch.randn(4, 64, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))


def ddp() -> None:
    train(DistributedDataParallel(layers(), bucket_cap_mb=0.01))


def fsdp2() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = layers()
    fully_shard(net[0], mesh=mesh)
    train(fully_shard(net, mesh=mesh))


WAYS: dict[str, Callable[[], None]] = {
    **{f"zero{stage}": partial(zero, stage) for stage in range(4)},
    "ddp": ddp,
    "fsdp2": fsdp2,
}


def digests(run: Callable[[], None]) -> list[str]:
    with watched_training() as found:
        run()
    return found


def main() -> None:
    out = Path(sys.argv[1])
    deepspeed.init_distributed(dist_backend="gloo")
    result = {}
    for name, run in WAYS.items():
        bare = digests(run)
        dsprof.enable(out=str(out / name))
        recorded = digests(run)
        dsprof.disable()
        result[name] = {"bare": bare, "recorded": recorded}
    (out / f"training.rank{dist.get_rank()}.json").write_text(json.dumps(result))
    leave_group()


if __name__ == "__main__":
    main()
