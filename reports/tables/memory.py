"""Memory of hosts and devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from dsprof.diagnosis.parts.memory import RankMemory, SnapshotRow, StackRow
from dsprof.findings.finding import Table
from dsprof.reports.tables.listing import Shown, listing

_RANK: tuple[Shown[RankMemory], ...] = (
    Shown("Rank", lambda row: row.rank, "count"),
    Shown("Peak RSS", lambda row: row.peak_rss_bytes, "bytes"),
    Shown("Last RSS", lambda row: row.last_rss_bytes, "bytes"),
    Shown("Host memory", lambda row: row.host_total_bytes, "bytes"),
    Shown("Least available", lambda row: row.least_host_available_bytes, "bytes"),
    Shown("/dev/shm", lambda row: row.shm_total_bytes, "bytes"),
    Shown("Least free", lambda row: row.least_shm_free_bytes, "bytes"),
)
_OF_STEPS: tuple[Shown[RankMemory], ...] = (
    Shown("Stuck", lambda row: _most(row.stuck_bytes), "bytes"),
    Shown("Peak gathered", lambda row: _most(row.gathered_bytes), "bytes"),
    Shown("Peak buckets in flight", lambda row: _most(row.reducing_bytes), "bytes"),
)


def memory(rows: Sequence[RankMemory]) -> Table:
    """Peaks and least free memory of each rank."""
    counters = sorted({name for row in rows for name in row.device})
    of_steps = [column for column in _OF_STEPS if any(column.of(row) for row in rows)]
    return listing("Memory by rank", [*_RANK, *of_steps, *map(_counter, counters)], rows)


def _most(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _counter(name: str) -> Shown[RankMemory]:
    kind = "bytes" if "byte" in name else "count"
    return Shown(name, lambda row: row.device.get(name), kind)  # type: ignore[arg-type]


_SNAPSHOT: tuple[Shown[SnapshotRow], ...] = (
    Shown("Rank", lambda row: row.rank, "count"),
    Shown("Reserved", lambda row: row.reserved_bytes, "bytes"),
    Shown("In use", lambda row: row.active_bytes, "bytes"),
    Shown("Cached, returned on request", lambda row: row.cached_bytes, "bytes"),
    Shown("Stuck", lambda row: row.stuck_bytes, "bytes"),
    Shown("Largest free block", lambda row: row.largest_free_bytes, "bytes"),
    Shown("In expandable segments", lambda row: row.expandable_bytes, "bytes"),
    Shown("In private pools", lambda row: row.private_bytes, "bytes"),
    Shown("Segments", lambda row: row.segments, "count"),
    Shown("Partly used", lambda row: row.partly_used, "count"),
    Shown("Peak requested", lambda row: row.peak_bytes, "bytes"),
)


class _Holder(NamedTuple):
    """Who held memory of a rank at the peak."""

    rank: int
    caller: str
    nbytes: int


_HOLDER: tuple[Shown[_Holder], ...] = (
    Shown("Rank", lambda one: one.rank, "count"),
    Shown("Called from", lambda one: one.caller),
    Shown("Held", lambda one: one.nbytes, "bytes"),
)


def snapshots(rows: Sequence[SnapshotRow]) -> Iterator[Table]:
    """How the memory of each device was laid out, and who held it at the peak."""
    yield listing("Snapshots: in use + cached + stuck = reserved", _SNAPSHOT, rows)
    if holders := [one for row in rows for one in _holders(row) if one.nbytes]:
        yield listing("What held memory at the peak", _HOLDER, holders)


_STACK: tuple[Shown[StackRow], ...] = (
    Shown("Allocated by", lambda one: one.calls[-1] if one.calls else None),
    Shown("Called from", lambda one: one.calls[-2] if len(one.calls) > 1 else None),
    Shown("Held", lambda one: one.bytes, "bytes"),
)
stacks = partial(listing, "", _STACK)
"""Memory in use by call stack."""


def _holders(row: SnapshotRow) -> Iterator[_Holder]:
    for caller, nbytes in row.peak_holders.items():
        yield _Holder(row.rank, caller, nbytes)
    yield _Holder(row.rank, "allocated before the history began", row.peak_before_bytes or 0)
