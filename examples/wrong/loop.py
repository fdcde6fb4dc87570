"""Training loops that talk too much, or wait for one rank. They reduce gradients by themselves."""

from collections.abc import Callable
from time import sleep

import torch
import torch.distributed as dist

from examples.wrong.training import Patch, Step, batch, network

_WIDTH = 64


def _reduced(each_step: Callable[[torch.Tensor], object]) -> Step:
    """Return a step that reduces all gradients at once; `each_step` comes between."""
    model, x = network(2, _WIDTH), batch(_WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step() -> None:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        each_step(loss.detach())
        flat = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        dist.all_reduce(flat)
        optimizer.step()

    return step


def late_rank(patch: Patch | None) -> Step:
    """Let rank 1 take 20 ms longer than the others before each reduction."""
    late_ms = 20 if dist.get_rank() == 1 and patch is None else 0
    return _reduced(lambda loss: sleep((5 + late_ms) / 1e3))


def barriers(patch: Patch | None) -> Step:
    """Hold all ranks at barriers that nothing needs, left over from a search for a bug."""

    def check(loss: torch.Tensor) -> None:
        for _ in range(20):
            sleep(0.2e-3)
            if patch is None:
                dist.barrier()

    return _reduced(check)


def scalars(patch: Patch | None) -> Step:
    """Average 24 metrics separately in each step; joined, they are one collective."""

    def metrics(loss: torch.Tensor) -> None:
        values = torch.stack([loss * factor for factor in range(24)])
        for value in values if patch is None else [values]:
            dist.all_reduce(value)

    return _reduced(metrics)


def barrier_before_reduction(patch: Patch | None) -> Step:
    """Have one rank late and all others wait for it at a barrier, and not in the reduction."""
    rank = dist.get_rank()

    def wait(loss: torch.Tensor) -> None:
        sleep((20 + 30 * rank) / 1e3)
        if patch is None:
            dist.barrier()

    return _reduced(wait)
