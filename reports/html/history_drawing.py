"""Time of a step over the whole of a rolling recording."""

from __future__ import annotations

from dsprof.diagnosis.model import History
from dsprof.findings import formatting as fmt
from dsprof.reports.html.drawing import (
    WIDTH,
    Drawing,
    Key,
    Shape,
    Word,
    level,
    line,
    rectangle,
    spread,
    ticks,
)
from dsprof.reports.tables.time import moment

_PLOT_PX, _TOP_PX, _AXIS_PX = 140, 14, 20
_LEAST = 2
_ROOM = 1.2  # above the mean of the slowest span: single steps far above it are cut


def history_drawing(found: History) -> Drawing | None:
    """Draw mean, fastest and slowest step of each span; None for a single span."""
    spans = found.spans
    if len(spans) < _LEAST:
        return None
    begin_s, end_s = spans[0].begin_s, spans[-1].begin_s + found.length_s
    highest = max(span.mean_ns for span in spans) * _ROOM or 1
    across, scale, bottom = WIDTH / (end_s - begin_s), _PLOT_PX / highest, _TOP_PX + _PLOT_PX
    width = found.length_s * across

    def y(value_ns: float) -> float:
        return bottom - min(value_ns, highest) * scale

    band = "".join(
        rectangle(
            (span.begin_s - begin_s) * across,
            y(span.slowest_ns),
            width,
            y(span.fastest_ns) - y(span.slowest_ns),
        )
        for span in spans
    )
    means = [((span.begin_s - begin_s) * across + width / 2, y(span.mean_ns)) for span in spans]
    slowest = max(spans, key=lambda span: span.slowest_ns)
    grid = [(value, y(value)) for value in ticks(highest)]
    return Drawing(
        sentence=f"Time of a step over {fmt.count(found.steps)} steps, in spans of "
        f"{fmt.duration(found.length_s * 1e9)}; the slowest is step "
        f"{fmt.count(slowest.slowest_step)} with "
        f"{fmt.duration(slowest.slowest_ns)}.",
        height_px=bottom + _AXIS_PX,
        shapes=(
            Shape("".join(level(at) for _, at in grid), "line", kind="line"),
            Shape(band, "line"),
            Shape(line(means), "series-1", kind="line"),
        ),
        words=tuple(
            Word((spans[place].begin_s - begin_s) * across / 10, bottom + 15, label, "start")
            for place, label in spread([moment(span.begin_s) for span in spans])
        ),
        lanes=tuple(Word(100, at + 4, fmt.duration(value)) for value, at in grid),
        keys=(
            Key("mean", "series-1", "line"),
            Key(f"fastest to slowest, up to {fmt.duration(slowest.slowest_ns)}", "line"),
        ),
    )
