"""Moves DTensors twice on 2 or 4 ranks: bare, under torch's DebugMode, which logs what is asked
for and done; then recorded.

Arguments: a folder. Writes the oracle of each scenario, and a folder of traces for each.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils._debug_mode import DebugMode

import dsprof
from tests.dist.leaving import leave_group


def tensor_parallel(flat: DeviceMesh, grid: DeviceMesh) -> None:
    net = nn.Sequential(nn.Embedding(16, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    plan = {
        "0": RowwiseParallel(input_layouts=Replicate()),
        "1": ColwiseParallel(),
        "3": RowwiseParallel(),
    }
    parallelize_module(net, flat, plan)
    net(torch.arange(8).reshape(2, 4)).sum().backward()


def sequence_parallel(flat: DeviceMesh, grid: DeviceMesh) -> None:
    net = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16))
    plan = {
        "0": SequenceParallel(),
        "1": ColwiseParallel(input_layouts=Shard(1)),
        "2": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(net, grid["tp"], plan)
    net(torch.ones(2, 4, 16)).sum().backward()


def redistribute(flat: DeviceMesh, grid: DeviceMesh) -> None:
    sharded = distribute_tensor(torch.ones(8, 8), flat, [Shard(0)]).requires_grad_()
    sharded.redistribute(placements=[Replicate()]).sum().full_tensor().backward()
    sharded.redistribute(placements=[Shard(1)]).to_local().clone()
    partial = DTensor.from_local(torch.ones(4, 4), flat, [Partial("max")])
    partial.redistribute(placements=[Replicate()]).to_local().clone()
    partial.redistribute(placements=[Shard(0)]).to_local().clone()
    distribute_tensor(torch.ones(3, 3), flat, [Shard(0)]).full_tensor()
    both = distribute_tensor(torch.ones(8, 8), grid, [Shard(0), Shard(1)])
    both.redistribute(placements=[Replicate(), Shard(1)]).to_local().clone()
    both.full_tensor()


def gradient_norm(flat: DeviceMesh, grid: DeviceMesh) -> None:
    net = nn.Sequential(nn.Linear(16, 16))
    parallelize_module(net, grid["tp"], {"0": ColwiseParallel()})
    fully_shard(net, mesh=grid["dp"])
    net(torch.ones(4, 16)).sum().backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    norm.full_tensor()  # type: ignore[operator]


SCENARIOS = (tensor_parallel, sequence_parallel, redistribute, gradient_norm)


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    flat = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
    grid = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
    oracle = {}
    for scenario in SCENARIOS:
        with DebugMode() as mode:
            scenario(flat, grid)
        oracle[scenario.__name__] = mode.debug_string()
    (folder / f"oracle.rank{dist.get_rank()}.json").write_text(json.dumps(oracle))
    for scenario in SCENARIOS:
        dsprof.enable(out=str(folder / scenario.__name__))
        dist.barrier()
        scenario(flat, grid)
        dsprof.step()
        dsprof.disable()
    leave_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
