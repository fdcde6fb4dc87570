"""Compiles what communicates, without dsprof and with it; writes what torch.compile made of it.

OUT/compiled.rankN.json: {row: {"bare", "auto", "dispatcher", "native": {"graphs", "breaks", ...}}}.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import deepspeed
import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch._dynamo.utils import counters, get_compilation_metrics
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import dsprof
from tests.dist.leaving import leave_group

BATCHES = (4, 4, 6, 6)  # the third compiles again


class Net(nn.Module):
    """A class of its own: dynamo skips frames of torch.nn, so a bare Sequential is not compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def layers() -> Net:
    torch.manual_seed(0)
    return Net()


def train(net: nn.Module) -> None:
    compiled = torch.compile(net, backend="aot_eager")
    for batch in BATCHES:
        compiled(torch.ones(batch, 16)).square().mean().backward()


def ddp() -> None:
    train(DistributedDataParallel(layers()))


def fsdp2() -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    train(fully_shard(layers(), mesh=mesh))


def functional_collectives() -> None:
    def reduced(x: torch.Tensor) -> torch.Tensor:
        y = functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1
        dist.all_reduce(y)
        torch._dynamo.graph_break()
        return functional.all_gather_tensor(y, 0, dist.group.WORLD).sum()

    call = torch.compile(reduced, backend="aot_eager")
    for batch in BATCHES:
        call(torch.ones(batch))


def zero(stage: int) -> None:
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    engine, *_ = deepspeed.initialize(model=layers(), config=config)
    engine.compile(backend="aot_eager")
    try:
        for batch in BATCHES:
            x = torch.ones(batch, 16, dtype=torch.bfloat16)
            engine.backward(engine(x).float().square().mean())
            engine.step()
    finally:
        engine.destroy()


ROWS: dict[str, Callable[[], None]] = {
    "ddp": ddp,
    "fsdp2": fsdp2,
    "functional": functional_collectives,
    "zero1": partial(zero, 1),
    "zero3": partial(zero, 3),
}


def made(row: Callable[[], None]) -> dict[str, object]:
    """Return what dynamo counts while a row runs."""
    torch._dynamo.reset()
    counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    row()
    metrics = get_compilation_metrics()
    return {
        "graphs": counters["stats"]["unique_graphs"],
        "breaks": sum(counters["graph_break"].values()),
        "reasons": len(counters["graph_break"]),
        "frames": dict(counters["frames"]),
        "compilations": len(metrics),
        "recompilations": sum(metric.recompile_reason is not None for metric in metrics),
    }


def main() -> None:
    out = Path(sys.argv[1])
    deepspeed.init_distributed(dist_backend="gloo")
    found: dict[str, dict[str, object]] = {}
    for name, row in ROWS.items():
        row()  # what happens only once
        ways = found[name] = {"bare": made(row)}
        for way in ("auto", "dispatcher", "native"):
            dsprof.enable(out=str(out / way / name), interception=way)
            ways[way] = made(row)
            dsprof.disable()
    (out / f"compiled.rank{dist.get_rank()}.json").write_text(json.dumps(found))
    leave_group()


if __name__ == "__main__":
    main()
