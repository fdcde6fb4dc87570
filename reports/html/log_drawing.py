"""Warnings and errors of a log in its order, a row for each rank that wrote any."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dsprof.diagnosis.parts.logs import LogMarkRow
from dsprof.findings import formatting as fmt
from dsprof.reports.html.drawing import WIDTH, Drawing, Key, Shape, Word, gridlines, rectangle

MOST_RANKS = 24
_ROW_PX, _TOP_PX, _AXIS_PX = 20, 4, 18
_WIDTH = 5


def log_drawing(marks: Sequence[LogMarkRow]) -> Drawing | None:
    """Draw the ranks that fail first; None where a single rank wrote all, which a table says."""
    order = sorted(marks, key=lambda mark: (not mark.is_error, mark.place))
    ranks = list(dict.fromkeys(mark.rank for mark in order))
    if len(ranks) < 2:
        return None
    rows = {rank: row for row, rank in enumerate(sorted(ranks[:MOST_RANKS], key=_order))}
    bottom, first = _TOP_PX + _ROW_PX * len(rows), order[0]
    shown = [mark for mark in marks if mark.rank in rows]
    kinds = dict.fromkeys(mark.is_error for mark in order)
    return Drawing(
        sentence=f"{fmt.plural(len(marks), 'message')} of {fmt.plural(len(ranks), 'rank')} in the "
        f"order of the log; the first {_kind(first)} is of {_who(first.rank)}: {first.text}.",
        height_px=bottom + _AXIS_PX,
        shapes=(
            gridlines(_TOP_PX + (row + 0.5) * _ROW_PX for row in range(len(rows))),
            *(
                Shape(_at(mark, rows[mark.rank]), _COLOURS[mark.is_error], mark.text)
                for mark in shown
            ),
            Shape(_at(first, rows[first.rank], 2), "ink", first.text, "outline"),
        ),
        words=(
            Word(0, bottom + 13, "start of the log", "start"),
            Word(100, bottom + 13, "end", "end"),
        ),
        lanes=tuple(
            Word(
                100,
                _TOP_PX + row * _ROW_PX + 13,
                _who(rank),
                "strong" if rank == first.rank else "",
            )
            for rank, row in rows.items()
        ),
        keys=(
            *(Key("error" if is_error else "warning", _COLOURS[is_error]) for is_error in kinds),
            Key(f"first {_kind(first)}: {_who(first.rank)}, {first.text}", "ink", "outline"),
        ),
    )


_COLOURS = {True: "exposed_comm", False: "idle"}


def _order(rank: int | None) -> float:
    return math.inf if rank is None else rank


def _who(rank: int | None) -> str:
    return "an unknown rank" if rank is None else f"rank {rank}"


def _kind(mark: LogMarkRow) -> str:
    return "error" if mark.is_error else "warning"


def _at(mark: LogMarkRow, row: int, around: int = 0) -> str:
    """Return the rectangle of a mark; errors are higher than warnings."""
    height = 14 if mark.is_error else 8
    left = min(max(mark.place, 0), 1) * (WIDTH - _WIDTH)
    top = _TOP_PX + row * _ROW_PX + (_ROW_PX - height) / 2
    return rectangle(left - around, top - around, _WIDTH + 2 * around, height + 2 * around)
