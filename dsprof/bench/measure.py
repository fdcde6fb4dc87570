"""Costs of each operation in one team, over sizes; and whether its results are right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from dsprof.analysis.baseline import OpCost, Sample, fitted
from dsprof.bench.clock import Clock, clock_of
from dsprof.bench.groups import Team
from dsprof.bench.primitives import ELEMENT_BYTES, PRIMITIVES, Place, Trial
from dsprof.trace.collectives import SYNCHRONISING

T = TypeVar("T")

_BUDGET_NS = 100_000_000
"""All repetitions of one operation at one size together take about this long."""
_FEWEST, _MOST = 5, 40


@dataclass(frozen=True, slots=True)
class Wrong:
    """A result that is not what the operation is defined to give."""

    op: str
    nbytes: int
    group: str
    rank: int  # global
    text: str

    def __str__(self) -> str:
        return f"{self.op} of {self.nbytes:,} bytes in {self.group}, rank {self.rank}: {self.text}"


@dataclass(slots=True)
class Outcome:
    """Findings of one team, the same on each of its ranks."""

    costs: list[OpCost] = field(default_factory=list)
    wrong: list[Wrong] = field(default_factory=list)
    unsupported: dict[str, str] = field(default_factory=dict)


def measure(team: Team, device: torch.device, sizes: Sequence[int]) -> Outcome:
    """Check and time every operation of a team, on all its ranks at once."""
    outcome = Outcome()
    for op in PRIMITIVES:
        if op == "send" and team.size != 2:
            continue
        samples = _samples(op, team, device, (0,) if op == "barrier" else sizes, outcome)
        if samples:
            latency_ns, ns_per_byte = fitted(samples)
            outcome.costs.append(
                OpCost(
                    op=op,
                    group=team.plan.name,
                    ranks=team.plan.ranks,
                    crosses_nodes=team.plan.crosses_nodes,
                    latency_ns=latency_ns,
                    ns_per_byte=ns_per_byte,
                    samples=tuple(samples),
                )
            )
    return outcome


def _samples(
    op: str, team: Team, device: torch.device, sizes: Sequence[int], outcome: Outcome
) -> list[Sample]:
    """Time one operation, until a size at which it fails or gives a wrong result."""
    found: dict[int, Sample] = {}
    clock = clock_of(device)
    for size in sizes:
        shares = max(1, -(-size // (ELEMENT_BYTES * team.size)))  # rounded up
        place = Place(team, device, shares * team.size)
        nbytes = place.elements * ELEMENT_BYTES if size else 0
        trial, problem = _made(op, place)
        if problem or trial is None:
            outcome.unsupported[op] = f"{nbytes:,} bytes in {team.plan.name}: {problem}"
            break
        if wrong := _checked(trial, team):
            group = f"group {team.plan.name} of {team.size} ranks"
            outcome.wrong += [Wrong(op, nbytes, group, rank, text) for rank, text in wrong]
            break
        trial.clear()
        found[nbytes] = Sample(nbytes, _time_ns(op, trial, team, clock))
    return list(found.values())


def _made(op: str, place: Place) -> tuple[Trial | None, str]:
    """Make a trial and call it once; say what kept a rank of the team from that.

    Memory is asked for before anyone calls: a rank without it would leave the others waiting.
    """
    trial, problem = _tried(partial(PRIMITIVES[op], place), place.team)
    if trial is not None and not problem:
        _, problem = _tried(trial.call, place.team)
    return trial, problem


def _tried(do: Callable[[], T], team: Team) -> tuple[T | None, str]:
    """Return the result on this rank, and what went wrong on the first rank where it did."""
    result, problem = None, ""
    try:
        result = do()
    except Exception as error:  # noqa: BLE001 - backends refuse in many ways, each is reported
        problem = " ".join(str(error).split())[:200] or type(error).__name__
    return result, next(filter(None, team.told(problem)), "")


def _checked(trial: Trial, team: Team) -> list[tuple[int, str]]:
    told = team.told(trial.wrong())
    return [(rank, text) for rank, text in zip(team.plan.ranks, told, strict=True) if text]


def _time_ns(op: str, trial: Trial, team: Team, clock: Clock) -> float:
    """Return the median time of a trial whose ranks begin together.

    Where no rank leaves before all have entered, the last to enter has the time without waiting.
    """
    team.barrier()
    longest = max(max(team.told(clock(trial.call))), 1)
    repeats = min(max(_BUDGET_NS // longest, _FEWEST), _MOST)
    mine = []
    for _ in range(repeats):
        team.barrier()
        mine.append(clock(trial.call))
    times = np.array(team.told(mine))
    return float(np.median(times.min(0) if op in SYNCHRONISING else times.max(0)))
