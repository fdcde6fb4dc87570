"""Trains in many ways in which nothing is wrong, each recorded into a folder of its own.

Arguments: a folder, and names of WAYS to train; without names, all that suit the number of ranks.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import dsprof
from examples.deepspeed_zero import fast_dtype
from tests.dist.leaving import leave_group

STEPS, WIDTH, LAYERS, BATCH = 26, 256, 4, 64
SIZED = {"reduce_bucket_size": 150_000}
ON_HOST = {"device": "cpu"}


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS))
    return nn.Sequential(*blocks, nn.Linear(WIDTH, WIDTH))


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        expert = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.moe = MoE(hidden_size=WIDTH, expert=expert, num_experts=2, ep_size=2, min_capacity=4)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.moe(self.first(x))[0])


def batches(dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (BATCH, WIDTH)) -> Tensor:
    generator = torch.Generator().manual_seed(dist.get_rank())
    return torch.randn(*shape, generator=generator).to(dtype)


def with_engine(
    model: Callable[[], nn.Module],
    stage: int,
    *,
    accumulation: int = 1,
    shape: tuple[int, ...] = (BATCH, WIDTH),
    **zero: object,
) -> None:
    net = model()
    groups: list = [{"params": list(net.parameters()), "name": "all"}]
    if model is Experts:
        groups = split_params_into_different_moe_groups_for_optimizer(groups)
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": accumulation,
        "bf16": {"enabled": fast_dtype() is torch.bfloat16},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": stage, **zero},
    }
    engine, *_ = deepspeed.initialize(model=net, model_parameters=groups, config=config)
    x = batches(fast_dtype(), shape)
    for _ in range(STEPS * accumulation):
        engine.backward(engine(x).float().square().mean())
        engine.step()
    engine.destroy()


def loop(net: nn.Module, accumulation: int = 1) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    x = batches()
    for _ in range(STEPS):
        for micro in range(accumulation):
            is_last = micro == accumulation - 1
            with contextlib.nullcontext() if is_last else net.no_sync():
                net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def ddp(accumulation: int) -> None:
    loop(DistributedDataParallel(layers(), bucket_cap_mb=0.5), accumulation)


def fsdp2() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = layers()
    for block in list(net)[:-1]:
        fully_shard(block, mesh=mesh)
    loop(fully_shard(net, mesh=mesh))


zero = partial(with_engine, layers)
WAYS: dict[str, Callable[[], None]] = {
    "zero0": partial(zero, 0),
    "zero1-accumulation": partial(zero, 1, accumulation=2, **SIZED),
    "zero2": partial(zero, 2, **SIZED),
    "zero2-accumulation": partial(zero, 2, accumulation=2, **SIZED),
    "zero3": partial(zero, 3, stage3_param_persistence_threshold=1000, **SIZED),
    "zero1-defaults": partial(zero, 1),
    "zero2-defaults": partial(zero, 2),
    "zero3-defaults": partial(zero, 3),
    "zero2-offload": partial(zero, 2, offload_optimizer=ON_HOST, **SIZED),
    "zero3-offload": partial(zero, 3, offload_optimizer=ON_HOST, offload_param=ON_HOST, **SIZED),
    "ddp": partial(ddp, 1),
    "ddp-accumulation": partial(ddp, 2),
}
MORE_RANKS: dict[str, Callable[[], None]] = {
    "fsdp2": fsdp2,  # on one rank it sends nothing, and then nothing is recorded
    "moe": partial(with_engine, Experts, 2, shape=(8, 8, WIDTH), **SIZED),
}


def main() -> None:
    out, *names = sys.argv[1:]
    deepspeed.init_distributed(dist_backend="gloo")
    fast_dtype()  # asks the other ranks, and is in no record
    ways = WAYS | (MORE_RANKS if dist.get_world_size() > 1 else {})
    for name in names or ways:
        dsprof.enable(out=str(Path(out) / name))
        ways[name]()
        dsprof.disable()
    leave_group()


if __name__ == "__main__":
    main()
