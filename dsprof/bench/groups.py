"""The groups that are measured: the world, each node, a pair within a node and one across two."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from dsprof.errors import DsprofError

T = TypeVar("T")

PATIENCE = timedelta(minutes=30)
"""Ranks that are no part of a team wait for it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A group to be made; those of one stage share no rank and are measured at the same time."""

    name: str
    ranks: tuple[int, ...]
    crosses_nodes: bool


@dataclass(frozen=True, slots=True)
class Team:
    """A group of which this rank is a member. `control` is gloo's, and carries only agreements."""

    plan: Plan
    group: Any
    control: Any

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.plan.ranks)

    @property
    def me(self) -> int:
        """This rank's number in the group."""
        return self.plan.ranks.index(dist.get_rank())

    def barrier(self) -> None:
        """Wait for all ranks of the team."""
        dist.barrier(self.control)

    def told(self, value: T) -> list[T]:
        """Return the values of all ranks of the team."""
        return told(value, self.control, self.size)


def devices_of(backend: str) -> list[str]:
    """Return the kinds of device that a backend communicates between.

    Raises:
        DsprofError: torch does not know the backend.
    """
    devices: list[str] | None = dist.Backend.backend_capability.get(backend)
    if not devices:
        known = ", ".join(dist.Backend.backend_capability)
        raise DsprofError(f"torch has no backend {backend!r}; it has {known}")
    return devices


def told(value: T, group: Any, size: int) -> list[T]:
    """Return the values of all ranks of a group of gloo."""
    found: list[Any] = [None] * size
    dist.all_gather_object(found, value, group=group)
    return found


def host_name() -> str:
    """Return the name of this host, as traces have it."""
    return socket.gethostname()


def stages(hosts: Sequence[str]) -> list[list[Plan]]:
    """Plan the groups of a world by the host of each rank; no group of the same ranks twice."""
    nodes = [
        tuple(rank for rank, host in enumerate(hosts) if host == name)
        for name in dict.fromkeys(hosts)
    ]
    several = [ranks for ranks in nodes if len(ranks) > 1]
    heads = tuple(ranks[0] for ranks in nodes[:2])
    wanted = [
        [Plan("world", tuple(range(len(hosts))), len(nodes) > 1)],
        [Plan("node", ranks, False) for ranks in several],
        [Plan("pair", ranks[:2], False) for ranks in several[:1]],
        [Plan("pair", heads, True)] if len(heads) > 1 else [],
    ]
    seen: set[tuple[int, ...]] = set()
    planned = []
    for stage in wanted:
        planned.append([plan for plan in stage if plan.ranks not in seen])
        seen.update(plan.ranks for plan in stage)
    return [stage for stage in planned if stage]


def join(stage: Sequence[Plan], backend: str) -> Team | None:
    """Make the groups of a stage, on every rank of the world; return that of this rank."""
    mine = None
    for plan in stage:
        group = dist.new_group(list(plan.ranks), backend=backend)
        control = dist.new_group(list(plan.ranks), backend="gloo", timeout=PATIENCE)
        if dist.get_rank() in plan.ranks:
            mine = Team(plan, group, control)
    return mine
