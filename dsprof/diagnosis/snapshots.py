"""The section on memory snapshots."""

from __future__ import annotations

from dsprof.analysis.aggregates.snapshots import Snapshots
from dsprof.diagnosis import model
from dsprof.trace.memory_snapshot import MemorySnapshot


def snapshots(facts: Snapshots) -> list[model.SnapshotRow]:
    """List what each snapshot says."""
    return [_row(rank, facts.ranks[rank]) for rank in sorted(facts.ranks)]


def _row(rank: int, one: MemorySnapshot) -> model.SnapshotRow:
    peak = one.peak
    return model.SnapshotRow(
        rank=rank,
        device=one.device,
        reserved_bytes=one.reserved_bytes,
        active_bytes=one.active_bytes,
        cached_bytes=one.cached_bytes,
        stuck_bytes=one.stuck_bytes,
        largest_free_bytes=one.largest_free_bytes,
        expandable_bytes=one.expandable_bytes,
        private_bytes=one.private_bytes,
        segments=one.segments,
        partly_used=one.partly_used,
        failed_bytes=one.oom_bytes or None,
        peak_bytes=peak.requested_bytes if peak else None,
        peak_before_bytes=peak.before_bytes if peak else None,
        peak_holders=dict(peak.holders) if peak else {},
    )
