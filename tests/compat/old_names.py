"""Gives an older torch the names that the wire table calls, where it has the same thing by another.

Nothing of torch is replaced, and what it has not at all stays away.
"""

import functools
import importlib
import inspect
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.pipelining as pipelining

FORMERLY = {
    "torch.distributed.tensor": "torch.distributed._tensor",
    "torch.distributed.fsdp": "torch.distributed._composable.fsdp",
}
"""Where public names were before they were public."""

NAMES = {
    "torch.distributed.tensor": ("DTensor", "Replicate", "Shard", "distribute_tensor"),
    "torch.distributed.fsdp": ("fully_shard",),
}


def give() -> None:
    """Add what is missing; a torch that has all of it stays as it is."""
    for module, names in NAMES.items():
        for name in names:
            _add(importlib.import_module(module), name, FORMERLY[module], name)
    _add(dist, "all_gather_single", "torch.distributed", "all_gather_into_tensor")
    _add(dist, "reduce_scatter_single", "torch.distributed", "reduce_scatter_tensor")
    needed = inspect.signature(pipelining.PipelineStage).parameters["input_args"]
    if needed.default is needed.empty:  # what one micro-batch of the row looks like
        pipelining.PipelineStage = functools.partial(
            pipelining.PipelineStage, input_args=torch.ones(2, 16)
        )


def _add(owner: Any, name: str, module: str, old: str) -> None:
    if not hasattr(owner, name):
        setattr(owner, name, getattr(importlib.import_module(module), old))
