"""The table of transfers: bandwidths beside what they are held to."""

from __future__ import annotations

from collections.abc import Iterable

from dsprof.diagnosis.model import TransferRow
from dsprof.rules.rule import Cell, Column, Table


def table(rows: Iterable[TransferRow]) -> Table:
    """List transfers by operation, group and size."""
    return Table(
        columns=(
            Column("Operation"),
            Column("Group (ranks)"),
            Column("Hosts", "count"),
            Column("Size"),
            Column("Calls", "count"),
            Column("Transfer", "ns"),
            Column("algbw", "rate"),
            Column("busbw", "rate"),
            Column("quickest quarter", "rate"),
            Column("Expected busbw", "rate"),
            Column("By"),
            Column("Judged"),
        ),
        rows=tuple(map(_row, rows)),
        caption="Transfer of collectives, their call of median speed",
    )


def _row(row: TransferRow) -> tuple[Cell, ...]:
    return (
        row.op,
        f"{row.group} ({row.group_size})",
        row.hosts,
        row.size_class,
        row.calls,
        row.time_ns,
        row.algbw,
        row.busbw,
        row.quick_busbw,
        row.expected_busbw,
        row.expected_from,
        "yes" if row.is_judged else "no",
    )
