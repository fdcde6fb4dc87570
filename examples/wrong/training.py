"""What the runs of this folder share: a device that takes its time, small models, a loop."""

from collections.abc import Callable, Mapping
from time import sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

Patch = Mapping[str, Any]
"""What is merged into a DeepSpeed configuration; an empty one means a change of the code."""
Step = Callable[[], object]
"""Trains one optimizer step."""


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_ms: float, backward_ms: float) -> Tensor:
        ctx.backward_ms = backward_ms
        sleep(forward_ms / 1e3)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        sleep(ctx.backward_ms / 1e3)
        return gradient, None, None


class Device(nn.Module):
    """Imitates work that a device does while the processor is idle: it sleeps."""

    def __init__(self, forward_ms: float, backward_ms: float) -> None:
        super().__init__()
        self.milliseconds = forward_ms, backward_ms

    def forward(self, x: Tensor) -> Tensor:
        return _Sleep.apply(x, *self.milliseconds)


def network(
    layers: int, width: int, forward_ms: float = 0, backward_ms: float = 0
) -> nn.Sequential:
    """Square layers, each with work for a device; the same on every rank."""
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts.append(nn.Linear(width, width))
        if forward_ms or backward_ms:
            parts.append(Device(forward_ms, backward_ms))
    return nn.Sequential(*parts)


def batch(width: int, dtype: torch.dtype = torch.float32, rows: int = 2) -> Tensor:
    """Return what a layer before the first trainable one would: it takes a gradient."""
    return torch.full((rows, width), 1.0 + dist.get_rank(), dtype=dtype, requires_grad=True)


def merged(config: Patch, patch: Patch | None) -> dict[str, Any]:
    """Return `config` with what `patch` says put over it, section by section."""
    result = dict(config)
    for key, value in (patch or {}).items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = merged(old, value)
        result[key] = value
    return result
