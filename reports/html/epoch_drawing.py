"""The epochs of a run on one axis of time."""

from __future__ import annotations

from collections.abc import Iterator

from dsprof.diagnosis.parts.epochs import EpochRow, Epochs
from dsprof.findings import formatting as fmt
from dsprof.findings.wording import long_duration, percent
from dsprof.reports.html.drawing import WIDTH, Drawing, Key, Shape, Word, rectangle

_BAR_PX, _ROW_PX, _AXIS_PX = 16, 22, 18
_MOST_LEFT = 0.6  # of the width: a label beside a later bar is at its left, also on a phone


def epoch_drawing(found: Epochs) -> Drawing | None:
    """Draw an epoch in each row: new steps, repeated ones, and time without steps."""
    if not found.rows:
        return None
    bottom = len(found.rows) * _ROW_PX
    across = WIDTH / max(found.whole_ns, 1)
    shapes: dict[str, list[str]] = {"idle": [], "copies": [], "compute": []}
    for place, row in enumerate(found.rows):
        for colour, begin_ns, end_ns in _bars(row):
            shapes[colour].append(
                rectangle(begin_ns * across, place * _ROW_PX, (end_ns - begin_ns) * across, _BAR_PX)
            )
    return Drawing(
        sentence=f"{len(found.rows)} epochs in {long_duration(found.whole_ns)}; "
        f"{percent(found.lost_share)} of the time was lost without a new step.",
        height_px=bottom + _AXIS_PX,
        shapes=tuple(Shape("".join(paths), colour) for colour, paths in shapes.items() if paths),
        words=(
            *(_label(row, place, across) for place, row in enumerate(found.rows)),
            Word(0, bottom + 13, "0", "start"),
            Word(50, bottom + 13, long_duration(found.whole_ns / 2)),
            Word(100, bottom + 13, long_duration(found.whole_ns), "end"),
        ),
        lanes=tuple(
            Word(100, place * _ROW_PX + 13, f"{row.number}: {fmt.plural(row.world_size, 'rank')}")
            for place, row in enumerate(found.rows)
        ),
        keys=(
            Key("new steps", "compute"),
            *([Key("repeated steps", "copies")] if shapes["copies"] else []),
            Key("no steps", "idle"),
        ),
    )


def _bars(row: EpochRow) -> Iterator[tuple[str, int, int]]:
    yield "idle", row.start_ns, row.end_ns
    if row.first_step_ns is None or row.last_step_ns is None:
        return
    again_ns = min(row.first_step_ns + row.repeated_ns, row.last_step_ns)
    if again_ns > row.first_step_ns:
        yield "copies", row.first_step_ns, again_ns
    yield "compute", again_ns, row.last_step_ns


def _label(row: EpochRow, place: int, across: float) -> Word:
    """Say beside a bar how the epoch ended."""
    text = f"{row.end} ({fmt.named_ranks(row.ranks)})" if row.ranks else row.end
    end, begin = row.end_ns * across / WIDTH, row.start_ns * across / WIDTH
    if end > _MOST_LEFT and begin > 1 - _MOST_LEFT:
        return Word(100 * begin - 0.5, place * _ROW_PX + 13, text, "end")
    if end > _MOST_LEFT:
        return Word(100 * (begin + end) / 2, place * _ROW_PX + 13, text, "inside")
    return Word(100 * end + 0.5, place * _ROW_PX + 13, text, "start")
