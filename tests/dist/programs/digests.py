"""Digests of what training computes: losses, and at each optimizer step gradients and weights.

Torch alone is asked, by its own hooks for every optimizer; nothing of dsprof is imported.
"""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Return a digest of the values, bit by bit; of a distributed tensor, of this rank's part."""
    total = hashlib.sha256()
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        total.update(local.detach().double().numpy().tobytes())  # exact for all narrower types
    return total.hexdigest()[:16]


@contextmanager
def watched_training() -> Iterator[list[str]]:
    """Fill a list with "what digest" of each loss, gradients and weights in the block."""
    digests: list[str] = []
    backward = torch.Tensor.backward

    def watched(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        digests.append(f"loss {digest([self])}")
        backward(self, *args, **kwargs)

    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        gradients = [p.grad for p in parameters(optimizer) if p.grad is not None]
        digests.append(f"{len(gradients)} gradients {digest(gradients)}")

    def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        digests.append(f"weights {digest(parameters(optimizer))}")

    hooks = (register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after))
    torch.Tensor.backward = watched
    try:
        yield digests
    finally:
        torch.Tensor.backward = backward
        for hook in hooks:
            hook.remove()


def parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
