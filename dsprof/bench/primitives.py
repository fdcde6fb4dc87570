"""The operations that are measured, each with the result that it must have.

Every tensor is made of small whole numbers, of which float32 holds each sum exactly: a result is
right or wrong, and never nearly right. Element i of rank r is (i + 31 r) mod 61.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from dsprof.bench.groups import Team

ELEMENT_BYTES = 4
_PERIOD, _SHIFT = 61, 31


@dataclass(frozen=True, slots=True)
class Trial:
    """One operation made ready: its tensors are made once, and it can be called again and again."""

    call: Callable[[], object]
    given: Tensor | None = None  # set to zeros once checked, so that sums stay finite
    result: Tensor | None = None  # None: this rank gets none
    expected: Tensor | None = None

    def wrong(self) -> str:
        """Say what is wrong with the result of its first call; "" if nothing is."""
        if self.result is None or self.expected is None:
            return ""
        differs = torch.nonzero(self.result != self.expected)
        if not len(differs):
            return ""
        first = int(differs[0])
        got, wanted = float(self.result[first]), float(self.expected[first])
        return f"{len(differs):,} elements, the first is {first}: {got:g} in place of {wanted:g}"

    def clear(self) -> None:
        """Set what is sent to zeros."""
        if self.given is not None:
            self.given.zero_()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a trial takes place: a team, a device, and the elements of the whole array."""

    team: Team
    device: torch.device
    elements: int  # a multiple of the team's size

    @property
    def part(self) -> int:
        """Elements of one rank's share of the array."""
        return self.elements // self.team.size

    @property
    def root(self) -> int:
        """The global rank of the team's first."""
        return self.team.plan.ranks[0]

    @property
    def is_root(self) -> bool:
        """Whether this rank is the team's first."""
        return self.team.me == 0

    def zeros(self, elements: int) -> Tensor:
        """Return a tensor of zeros."""
        return torch.zeros(elements, device=self.device)

    def values(self, rank: int, elements: int, start: int = 0) -> Tensor:
        """Return what a rank of the team holds from element `start` on."""
        return self._repeated(_pattern(rank), elements, start)

    def summed(self, elements: int, start: int = 0) -> Tensor:
        """Return the sum over all ranks of what they hold from element `start` on."""
        total = sum((_pattern(rank) for rank in range(self.team.size)), torch.zeros(_PERIOD))
        return self._repeated(total, elements, start)

    def _repeated(self, pattern: Tensor, elements: int, start: int) -> Tensor:
        turned = pattern.roll(-(start % _PERIOD)).to(self.device)
        return turned.repeat(elements // _PERIOD + 1)[:elements].clone()


def _pattern(rank: int) -> Tensor:
    return ((torch.arange(_PERIOD) + _SHIFT * rank) % _PERIOD).float()


def _all_reduce(at: Place) -> Trial:
    data, group = at.values(at.team.me, at.elements), at.team.group
    call = partial(dist.all_reduce, data, group=group)
    return Trial(call, data, data, at.summed(at.elements))


def _reduce_scatter(at: Place) -> Trial:
    data, out = at.values(at.team.me, at.elements), at.zeros(at.part)
    call = partial(_named("reduce_scatter"), out, data, group=at.team.group)
    return Trial(call, data, out, at.summed(at.part, at.team.me * at.part))


def _all_gather(at: Place) -> Trial:
    data, out = at.values(at.team.me, at.part), at.zeros(at.elements)
    call = partial(_named("all_gather"), out, data, group=at.team.group)
    return Trial(call, data, out, torch.cat(_parts(at)))


def _all_to_all(at: Place) -> Trial:
    data, out = at.values(at.team.me, at.elements), at.zeros(at.elements)
    call = partial(dist.all_to_all_single, out, data, group=at.team.group)
    mine = at.team.me * at.part
    expected = torch.cat([at.values(rank, at.part, mine) for rank in range(at.team.size)])
    return Trial(call, data, out, expected)


def _broadcast(at: Place) -> Trial:
    expected = at.values(0, at.elements)
    data = expected.clone() if at.is_root else at.zeros(at.elements)
    call = partial(dist.broadcast, data, at.root, group=at.team.group)
    return Trial(call, data, data, expected)


def _reduce(at: Place) -> Trial:
    data = at.values(at.team.me, at.elements)
    call = partial(dist.reduce, data, at.root, group=at.team.group)
    result = data if at.is_root else None  # others may find anything in theirs
    return Trial(call, data, result, at.summed(at.elements))


def _gather(at: Place) -> Trial:
    data, out = at.values(at.team.me, at.part), at.zeros(at.elements) if at.is_root else None
    outs = None if out is None else list(out.split(at.part))
    call = partial(dist.gather, data, outs, at.root, group=at.team.group)
    return Trial(call, data, out, torch.cat(_parts(at)) if at.is_root else None)


def _scatter(at: Place) -> Trial:
    data, out = torch.cat(_parts(at)) if at.is_root else None, at.zeros(at.part)
    given = None if data is None else list(data.split(at.part))
    call = partial(dist.scatter, out, given, at.root, group=at.team.group)
    return Trial(call, data, out, at.values(at.team.me, at.part))


def _send(at: Place) -> Trial:
    """From the first of a pair to the second."""
    first, second = at.team.plan.ranks
    data = at.values(0, at.elements) if at.is_root else at.zeros(at.elements)
    if at.is_root:
        return Trial(partial(dist.send, data, second, group=at.team.group), data)
    call = partial(dist.recv, data, first, group=at.team.group)
    return Trial(call, data, data, at.values(0, at.elements))


def _barrier(at: Place) -> Trial:
    return Trial(partial(dist.barrier, group=at.team.group))


def _named(op: str) -> Callable[..., object]:
    """Return the function of one tensor, which torch 2.13 calls `_single` and deprecates else."""
    older = {"reduce_scatter": "reduce_scatter_tensor", "all_gather": "all_gather_into_tensor"}
    found: Callable[..., object] = getattr(dist, f"{op}_single", None) or getattr(dist, older[op])
    return found


def _parts(at: Place) -> list[Tensor]:
    return [at.values(rank, at.part) for rank in range(at.team.size)]


PRIMITIVES: Mapping[str, Callable[[Place], Trial]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "send": _send,
    "barrier": _barrier,
}
"""What makes a trial, by family of collectives; every rank of a team makes the trial of one."""
