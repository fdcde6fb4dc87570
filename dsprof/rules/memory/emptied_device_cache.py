"""emptied-device-cache: the allocator gives memory back to the device while training goes on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dsprof.analysis.aggregates.memory import Memory, RankMemory
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.summary import RunSummary
from dsprof.rules.memory.counters import FREED, RETRIES, device_series
from dsprof.rules.rule import Column, Finding, RuleMeta, Severity, Status, Table
from dsprof.rules.wording import count, named


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When it is a habit."""

    steps: int = 4  # after warm-up; fewer do not tell
    emptied_share: float = 0.5  # of the steps in which segments were given back


class _Emptied(NamedTuple):
    rank: int
    steps: int
    emptied_steps: int
    segments: int


class EmptiedDeviceCache:
    """Counts the steps in which segments went back to the device although no allocation failed."""

    meta = RuleMeta(
        id="emptied-device-cache",
        title="The allocator keeps its memory from step to step",
        failing_title="The allocator's cache is emptied again and again",
        why="Each segment that is given back waits for the device (cudaFree), and must be asked "
        "for again in the next step (cudaMalloc).",
        category="memory",
        needs=(Memory, Run),
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Judge each rank; after a retry the allocator itself empties the cache."""
        if run[Run].is_cpu:
            yield self.meta.finding(Status.NOT_APPLICABLE, "The run was on CPUs.")
            return
        counted = [_count(rank, memory) for rank, memory in sorted(run[Memory].ranks.items())]
        long = [one for one in counted if one.steps >= thresholds.steps]
        if not long:
            text = "Could not tell: segments given back were not counted over enough steps."
            yield self.meta.finding(Status.UNKNOWN, text)
            return
        if often := [o for o in long if o.emptied_steps >= thresholds.emptied_share * o.steps]:
            yield self._emptied(often)

    def _emptied(self, often: list[_Emptied]) -> Finding:
        worst = max(often, key=lambda one: one.segments)
        return self.meta.finding(
            Status.FAIL,
            f"{count(worst.segments / worst.steps)} segments a step are given back to the device "
            f"on rank {worst.rank}; in at least half of the steps on "
            f"{named([one.rank for one in often])}.",
            severity=Severity.MEDIUM,
            cause="No allocation failed, so someone asked for it: torch.cuda.empty_cache() in the "
            "training loop or in a callback, get_accelerator().empty_cache(), or "
            "garbage_collection_threshold in the settings of the allocator.",
            action="Do not empty the cache in each step: what is cached is used again in the next. "
            "After an evaluation or a checkpoint once is enough.",
            ranks=tuple(one.rank for one in often),
            evidence=(_table(often),),
            confidence="medium",
        )


def _count(rank: int, memory: RankMemory) -> _Emptied:
    """Count the steps after warm-up in which segments were given back without a retry."""
    freed, retries = device_series(memory, FREED), device_series(memory, RETRIES)
    if len(freed) != len(retries):
        return _Emptied(rank, 0, 0, 0)
    rises = [
        after - before if tried == tried_before else 0
        for before, after, tried_before, tried in zip(
            freed, freed[1:], retries, retries[1:], strict=False
        )
    ]
    return _Emptied(rank, len(rises), sum(rise > 0 for rise in rises), sum(rises))


def _table(often: list[_Emptied]) -> Table:
    return Table(
        columns=(
            Column("rank"),
            Column("steps", "count"),
            Column("steps that gave back", "count"),
            Column("segments given back", "count"),
        ),
        rows=tuple(often[:32]),
        caption="After warm-up",
    )


RULE = EmptiedDeviceCache()
