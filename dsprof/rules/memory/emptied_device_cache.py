"""emptied-device-cache: the allocator gives memory back to the device while training goes on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dsprof.analysis.aggregates.memory import Memory, RankMemory
from dsprof.analysis.aggregates.snapshots import Snapshots
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import count, named, plural, size
from dsprof.rules.evidence.allocator import EXPAND, device_series
from dsprof.rules.reasons import ON_CPUS
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.trace.device_counters import FREED, RETRIES
from dsprof.trace.dumps.memory_snapshot import ReturnedSegments


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When it is a habit."""

    steps: int = 4  # after warm-up; fewer do not tell
    emptied_share: float = 0.1  # of the steps in which segments were given back
    segments: int = 100  # given back in the history of a snapshot


_RECURS = 3
"""Segments given back in fewer steps may be those of one evaluation or checkpoint."""

_CALLED = (
    "The recorded call stacks show torch.cuda.empty_cache().",
    "Move empty_cache() out of the training loop, or remove it: cached memory is reused.",
)
_ROOM = (
    "Leave more room on the device: smaller micro-batches, activation checkpointing, more "
    f"sharding. On NVIDIA GPUs set {EXPAND}, so that segments grow instead."
)
_PRESSED = (
    "The device had no room for a new segment: the allocator then frees its whole cache and "
    "retries. Each cudaFree waits for the device.",
    _ROOM,
)
_UNTRACED = (
    "The device had no room for a new segment, or the program called torch.cuda.empty_cache(): "
    "the history has no call stacks to show which.",
    f"Remove empty_cache() from the training loop. {_ROOM}",
)
"""Cause and action, by who gave segments back."""


class _Emptied(NamedTuple):
    rank: int
    steps: int
    emptied_steps: int
    segments: int


class EmptiedDeviceCache(Rule):
    """Counts segments that went back to the device: in steps, or in the history of a snapshot.

    In a step they count where no allocation failed; a snapshot shows who gave them back.
    """

    meta = RuleMeta(
        id="emptied-device-cache",
        title="The allocator keeps its cache from step to step",
        failing_title="The allocator's cache is emptied repeatedly",
        why="Each segment that is returned costs a cudaFree, which waits for the device, and a "
        "cudaMalloc in the next step.",
        category="memory",
        order=450,
        needs=(Memory, Snapshots),
        on_cpus=ON_CPUS,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Judge each rank; after a retry the allocator itself empties the cache."""
        histories = {rank: one.returned for rank, one in run[Snapshots].ranks.items() if one.peak}
        if histories:
            yield from self._in_history(histories, thresholds)
            return
        counted = [_count(rank, memory) for rank, memory in sorted(run[Memory].ranks.items())]
        long = [one for one in counted if one.steps >= thresholds.steps]
        if not long:
            most = max((one.steps for one in counted), default=0)
            text = (
                f"Unknown: returned segments were counted in {plural(most, 'step')}; "
                f"{thresholds.steps} are needed."
                if most
                else "Unknown: returned segments were not recorded."
            )
            yield self.meta.unknown(text)
            return
        if often := [one for one in long if _is_habit(one, thresholds)]:
            yield self._emptied(often)

    def _in_history(
        self, histories: dict[int, ReturnedSegments], thresholds: Thresholds
    ) -> Iterable[Finding]:
        rank = max(histories, key=lambda rank: histories[rank].segments)
        one = histories[rank]
        is_requested = 2 * one.requested > one.segments
        if one.segments < thresholds.segments or (is_requested and one.flushes == 1):
            return
        flushed = _PRESSED if one.traced else _UNTRACED
        cause, action = _CALLED if is_requested else flushed
        often = [r for r in sorted(histories) if histories[r].segments >= thresholds.segments]
        yield self.meta.finding(
            Status.FAIL,
            f"Rank {rank} returned {count(one.segments)} segments ({size(one.nbytes)}) to the "
            f"device in {plural(one.flushes, 'flush', 'flushes')}.",
            severity=Severity.MEDIUM,
            cause=cause,
            action=action,
            ranks=tuple(often),
            confidence="high" if one.traced else "low",
        )

    def _emptied(self, often: list[_Emptied]) -> Finding:
        worst = max(often, key=lambda one: one.segments)
        return self.meta.finding(
            Status.FAIL,
            f"Rank {worst.rank} returned {count(worst.segments)} segments to the device, in "
            f"{worst.emptied_steps} of {plural(worst.steps, 'step')}. Affected: "
            f"{named([one.rank for one in often])}.",
            severity=Severity.MEDIUM,
            cause="No allocation failed, so the program or a setting asked for it: "
            "torch.cuda.empty_cache() in the training loop or in a callback, "
            "get_accelerator().empty_cache(), or garbage_collection_threshold of the allocator.",
            action="Do not empty the cache in the loop: the next step reuses it. Empty it once "
            "after an evaluation or a checkpoint.",
            ranks=tuple(one.rank for one in often),
            evidence=(_table(often),),
            confidence="medium",
        )


def _count(rank: int, memory: RankMemory) -> _Emptied:
    """Count the steps after warm-up in which segments were given back without a retry.

    Steps after one that was not kept are left out: it may have been in any between.
    """
    freed, retries = (device_series(memory, name) for name in (FREED, RETRIES))
    if len(freed.step) != len(retries.step):
        return _Emptied(rank, 0, 0, 0)
    is_next = np.diff(freed.step) == 1
    rises = np.where(np.diff(retries.value) == 0, np.diff(freed.value), 0)[is_next]
    return _Emptied(rank, len(rises), int(np.count_nonzero(rises > 0)), int(rises.sum()))


def _is_habit(one: _Emptied, thresholds: Thresholds) -> bool:
    return one.emptied_steps >= max(_RECURS, thresholds.emptied_share * one.steps)


def _table(often: list[_Emptied]) -> Table:
    return Table(
        columns=(
            Column("rank"),
            Column("steps", "count"),
            Column("steps with returned segments", "count"),
            Column("segments returned", "count"),
        ),
        rows=tuple(often[:32]),
        caption="After warm-up",
    )
