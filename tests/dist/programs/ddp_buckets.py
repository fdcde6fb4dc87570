"""Trains with DDP twice: bare, a communication hook of its own telling the buckets; then recorded.

Arguments: a folder. Writes the oracle of each scenario, and a folder of traces for each.
"""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import dsprof
from tests.dist.leaving import leave_group

STEPS, MICRO_STEPS = 4, 2
SCENARIOS: dict[str, dict[str, Any]] = {
    "plain": {},
    "view": {"gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
}


class Net(nn.Module):
    """Three layers, of which the second is left out where the scenario says so."""

    def __init__(self, leaves_out: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.leaves_out = leaves_out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            if number != 1 or not self.leaves_out:
                x = layer(x).tanh()
        return x


def train(scenario: str, told: list[list[int]] | None) -> None:
    """Train; with `told`, a hook of DDP adds step, bucket, bytes and parameters to it."""
    torch.manual_seed(0)
    options = {"bucket_cap_mb": 0.02, **SCENARIOS[scenario]}
    model = DistributedDataParallel(Net(scenario == "unused"), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0

    def tell(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        size = bucket.buffer().numel() * bucket.buffer().itemsize
        told.append([step, bucket.index(), size, len(bucket.parameters())])
        return default_hooks.allreduce_hook(None, bucket)

    if told is not None:
        model.register_comm_hook(None, tell)
    elif scenario == "view":
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    for step in range(STEPS):  # noqa: B007 - the hook reads it
        for micro in range(MICRO_STEPS):
            is_last = micro == MICRO_STEPS - 1 or scenario == "static"
            with contextlib.nullcontext() if is_last else model.no_sync():
                model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    oracle: dict[str, list[list[int]]] = {}
    for scenario in SCENARIOS:
        train(scenario, oracle.setdefault(scenario, []))
    (folder / f"oracle.rank{dist.get_rank()}.json").write_text(json.dumps(oracle))
    for scenario in SCENARIOS:
        dsprof.enable(out=str(folder / scenario))
        dist.barrier()
        train(scenario, None)
        dsprof.disable()
    leave_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
