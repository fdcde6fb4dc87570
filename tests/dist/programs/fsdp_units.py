"""Trains with FSDP twice on 4 ranks: bare, under torch.profiler, which FSDP2 tells its modules;
then recorded.

Arguments: a folder. Writes the oracle of each scenario, and a folder of traces for each.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.profiler import ProfilerActivity, profile

import dsprof
from tests.dist.leaving import leave_group

STEPS = 3
SCENARIOS = ("fsdp2", "hsdp2", "fsdp1", "hsdp1", "fsdp1orig", "fsdp1whole")
STRATEGIES = {"hsdp1": ShardingStrategy.HYBRID_SHARD, "fsdp1whole": ShardingStrategy.NO_SHARD}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).tanh()


def build(scenario: str) -> nn.Module:
    model = nn.Sequential()
    for number in range(3):
        model.add_module(f"block{number}", Block())
    model.add_module("head", nn.Linear(64, 1))
    shape = (4,) if scenario == "fsdp2" else (2, 2)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("outer", "inner")[-len(shape) :])
    if scenario.endswith("2"):
        for block in list(model)[:-1]:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    strategy = STRATEGIES.get(scenario, ShardingStrategy.FULL_SHARD)
    return FullyShardedDataParallel(
        model,
        sharding_strategy=strategy,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_mesh=mesh if strategy is ShardingStrategy.HYBRID_SHARD else None,
        use_orig_params=scenario == "fsdp1orig",
        device_id=torch.device("cpu"),
    )


def train(scenario: str) -> None:
    torch.manual_seed(0)
    model = build(scenario)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        if scenario == "fsdp1" and step == 1:
            with model.no_sync():
                model(torch.ones(8, 64)).sum().backward()
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def told(scenario: str) -> Counter[str]:
    """What torch's own ranges and operations say."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        train(scenario)
    names = (event.name for event in profiler.events())
    return Counter(name for name in names if name.startswith(("FSDP::", "c10d::")))


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    oracle = {scenario: told(scenario) for scenario in SCENARIOS}
    (folder / f"oracle.rank{dist.get_rank()}.json").write_text(json.dumps(oracle))
    for scenario in SCENARIOS:
        dsprof.enable(out=str(folder / scenario))
        dist.barrier()
        train(scenario)
        dsprof.disable()
    leave_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
