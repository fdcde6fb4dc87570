"""What a seed decides about one run: who misbehaves, where, and how the run is ended."""

from __future__ import annotations

import random
from dataclasses import dataclass

OPS = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
"""Collectives in which every rank waits for every other one."""

GROUPS = ("world", "second", "part")
"""All ranks; all of them in a group of its own; the culprit and half of the others."""

ENDS = ("interrupt", "timeout", "terminate", "walltime", "kill", "kill_launcher")


@dataclass(frozen=True)
class Draw:
    """One run of a case. `calls` healthy steps come before the fault."""

    ranks: int
    seed: int
    culprit: int
    calls: int
    op: str
    group: str
    end: str

    @classmethod
    def of(cls, case: str, seed: int, ranks: int = 4) -> Draw:
        """Draw a run: the same one for the same arguments; as many seeds as ends have them all."""
        chance = random.Random(f"{case} {seed} {ranks}")
        return cls(
            ranks=ranks,
            seed=seed,
            culprit=chance.randrange(ranks),
            calls=chance.randint(2, 9),
            op=chance.choice(OPS),
            group=chance.choice(GROUPS),
            end=ENDS[(random.Random(case).randrange(len(ENDS)) + seed) % len(ENDS)],
        )

    @property
    def part(self) -> list[int]:
        """The culprit and as many others as make half of the world, in order."""
        others = [rank for rank in range(self.ranks) if rank != self.culprit]
        return sorted([self.culprit, *others[: self.ranks // 2]])
