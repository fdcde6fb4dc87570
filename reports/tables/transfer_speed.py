"""Bandwidths beside what they are held to."""

from __future__ import annotations

from collections.abc import Iterable

from dsprof.diagnosis.model import TransferRow
from dsprof.findings.finding import Table
from dsprof.reports.tables.listing import Shown, listing

_TRANSFER: tuple[Shown[TransferRow], ...] = (
    Shown("Operation", lambda row: row.op),
    Shown("Group (ranks)", lambda row: f"{row.group} ({row.group_size})"),
    Shown("Hosts", lambda row: row.hosts, "count"),
    Shown("Size", lambda row: row.size_class),
    Shown("Calls", lambda row: row.calls, "count"),
    Shown("Transfer", lambda row: row.time_ns, "ns"),
    Shown("algbw", lambda row: row.algbw, "rate"),
    Shown("busbw", lambda row: row.busbw, "rate"),
    Shown("fastest quarter", lambda row: row.quick_busbw, "rate"),
    Shown("Expected busbw", lambda row: row.expected_busbw, "rate"),
    Shown("By", lambda row: row.expected_from),
    Shown("Judged", lambda row: "yes" if row.is_judged else "no"),
)


def transfers(rows: Iterable[TransferRow]) -> Table:
    """Transfers by operation, group and size."""
    return listing("Transfer of collectives, call of median speed", _TRANSFER, rows)
