"""DistributedDataParallel as it should not be used."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from examples.wrong.training import Device, Patch, Step, batch, network

_ACCUMULATION = 4


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-6)


def reduction_every_micro_step(patch: Patch | None) -> Step:
    """Accumulate gradients over four micro-steps without `no_sync`."""
    model = DistributedDataParallel(network(4, 256))
    return _accumulating(model, 256, patch)


def hidden_reductions(patch: Patch | None) -> Step:
    """Accumulate without `no_sync` where every reduction is over before the backward pass is."""
    return _accumulating(DistributedDataParallel(_behind_device()), 64, patch)


def _accumulating(model: DistributedDataParallel, width: int, patch: Patch | None) -> Step:
    optimizer, x = _optimizer(model), batch(width)
    accumulate = nullcontext if patch is None else model.no_sync

    def step() -> None:
        for _ in range(_ACCUMULATION - 1):
            with accumulate():
                model(x).sum().backward()
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def giant_bucket(patch: Patch | None) -> Step:
    """Have DDP send all gradients as one, when backward is over."""
    model = network(9, 512, forward_ms=1, backward_ms=25)
    capacity_mib = 1000 if patch is None else 1
    return _plain(DistributedDataParallel(model, bucket_cap_mb=capacity_mib), 512)


def tiny_buckets(patch: Patch | None) -> Step:
    """Have DDP send each gradient by itself."""
    model = network(32, 48)
    capacity_mib = 0.001 if patch is None else 25
    return _plain(DistributedDataParallel(model, bucket_cap_mb=capacity_mib), 48)


def hidden_tiny_buckets(patch: Patch | None) -> Step:
    """Have DDP send each gradient by itself, behind a backward pass that takes longer."""
    capacity_mib = 0.001 if patch is None else 25
    return _plain(DistributedDataParallel(_behind_device(), bucket_cap_mb=capacity_mib), 64)


def _behind_device() -> nn.Module:
    """Layers whose gradients are all there before a device begins the rest of backward."""
    return nn.Sequential(Device(5, 150), *network(20, 64))


def _plain(model: DistributedDataParallel, width: int) -> Step:
    optimizer, x = _optimizer(model), batch(width)

    def step() -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    return step
