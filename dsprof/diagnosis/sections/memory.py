"""Memory over time, and as the allocator's snapshots show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import nlargest

from dsprof.analysis.aggregates.memory import UNKNOWN, Memory, StepMemory
from dsprof.analysis.aggregates.memory import RankMemory as MemoryFacts
from dsprof.analysis.aggregates.snapshots import Snapshots
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.parts import filled
from dsprof.diagnosis.parts.memory import RankMemory, SnapshotRow, StackRow
from dsprof.trace.columns import IntArray
from dsprof.trace.device_counters import ALLOCATED, RESERVED, STUCK
from dsprof.trace.dumps.memory_snapshot import MemorySnapshot

_MOST_RANKS = 64
_EXTREMES = 4
"""Where not all ranks are shown: this many with the largest value of each counter, and with the
least memory left."""


def memory(summary: RunSummary) -> list[RankMemory]:
    """List the memory of each rank; of many, of those that stand out."""
    ranks = summary[Memory].ranks
    shown = ranks if len(ranks) <= _MOST_RANKS else set(_extremes(ranks))
    return [_memory(rank, ranks[rank]) for rank in sorted(shown)]


def _extremes(ranks: Mapping[int, MemoryFacts]) -> Iterator[int]:
    counters = sorted({name for facts in ranks.values() for name in facts.device_max})
    columns: list[dict[int, int | None]] = [
        {rank: facts.device_max.get(name) for rank, facts in ranks.items()} for name in counters
    ]
    columns += [
        {rank: facts.peak_rss_bytes for rank, facts in ranks.items()},
        {rank: _negative(facts.least_host_available_bytes) for rank, facts in ranks.items()},
        {rank: _negative(facts.least_shm_free_bytes) for rank, facts in ranks.items()},
    ]
    for column in columns:
        known = [(value, -rank) for rank, value in column.items() if value is not None]
        yield from (-negative for _, negative in nlargest(_EXTREMES, known))


def _negative(value: int | None) -> int | None:
    return None if value is None else -value


def _memory(rank: int, facts: MemoryFacts) -> RankMemory:
    at_steps = facts.at_steps
    return filled(
        RankMemory,
        facts,
        rank=rank,
        device=facts.device_max,
        steps=at_steps.step.tolist(),
        rss_bytes=at_steps.rss_bytes.tolist(),
        allocated_bytes=_device_column(at_steps, ALLOCATED),
        reserved_bytes=_device_column(at_steps, RESERVED),
        stuck_bytes=_device_column(at_steps, STUCK),
        gathered_bytes=_buffer_column(at_steps.gathered_bytes),
        reducing_bytes=_buffer_column(at_steps.reducing_bytes),
    )


def _buffer_column(column: IntArray) -> list[int | None]:
    values = [None if value == UNKNOWN else value for value in column.tolist()]
    return values if any(values) else []


def _device_column(at_steps: StepMemory, name: str) -> list[int]:
    column = at_steps.counters.get(name)
    return [] if column is None or (column == UNKNOWN).any() else column.tolist()


def snapshots(summary: RunSummary) -> list[SnapshotRow]:
    """List what each snapshot says."""
    ranks = summary[Snapshots].ranks
    return [_snapshot_row(rank, ranks[rank]) for rank in sorted(ranks)]


def _snapshot_row(rank: int, one: MemorySnapshot) -> SnapshotRow:
    peak = one.peak
    return filled(
        SnapshotRow,
        one,
        rank=rank,
        failed_bytes=one.oom_bytes or None,
        peak_bytes=peak.requested_bytes if peak else None,
        peak_before_bytes=peak.before_bytes if peak else None,
        peak_holders=dict(peak.holders) if peak else {},
        stacks=[StackRow(calls=[*calls], bytes=held) for calls, held in one.stacks],
    )


SECTIONS = {"memory": memory, "snapshots": snapshots}
