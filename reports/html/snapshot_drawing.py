"""The reserved memory of each device by its use, as bars on one scale."""

from __future__ import annotations

from collections.abc import Sequence

from dsprof.diagnosis.parts.memory import SnapshotRow
from dsprof.findings import formatting as fmt
from dsprof.reports.html.drawing import WIDTH, Drawing, Key, Shape, Word, rectangle

MAX_ROWS = 16
_KINDS = (
    ("active", "in use", "compute"),
    ("stuck", "stuck", "exposed_comm"),
    ("cached", "cached", "other"),
)
_ROW_PX, _BAR_PX = 26, 20


def snapshot_drawing(snapshots: Sequence[SnapshotRow]) -> Drawing | None:
    """Draw the fullest devices; None without a snapshot."""
    rows = sorted(snapshots, key=lambda row: -row.reserved_bytes)[:MAX_ROWS]
    most = max((row.reserved_bytes for row in rows), default=0)
    if not most:
        return None
    shapes, by_rank = [], sorted(rows, key=lambda row: row.rank)
    for place, row in enumerate(by_rank):
        left = 0.0
        for kind, label, colour in _KINDS:
            nbytes = getattr(row, f"{kind}_bytes")
            width = nbytes / most * WIDTH
            path = rectangle(left, place * _ROW_PX, width, _BAR_PX)
            shapes.append(Shape(path, colour, f"rank {row.rank}: {fmt.size(nbytes)} {label}"))
            left += width
    fullest = rows[0]
    told = [(label, getattr(fullest, f"{kind}_bytes"), colour) for kind, label, colour in _KINDS]
    return Drawing(
        sentence=f"Rank {fullest.rank} reserved {fmt.size(fullest.reserved_bytes)}: "
        + ", ".join(f"{fmt.size(nbytes)} {label}" for label, nbytes, _ in told)
        + ".",
        height_px=_ROW_PX * len(rows),
        shapes=tuple(shapes),
        lanes=tuple(
            Word(100, place * _ROW_PX + 14, f"rank {row.rank}") for place, row in enumerate(by_rank)
        ),
        keys=tuple(
            Key(f"{label} {fmt.size(nbytes)}" if len(rows) == 1 else label, colour)
            for label, nbytes, colour in told
        ),
    )
