"""Time of a step over the whole of a rolling recording; without steps, what was communicated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from dsprof.diagnosis.parts.history import History, TimeSpan, TimeSpans
from dsprof.findings import formatting as fmt
from dsprof.reports.html.drawing import (
    WIDTH,
    Drawing,
    Key,
    Shape,
    Word,
    gridlines,
    line,
    rectangle,
    spread,
    ticks,
)
from dsprof.reports.html.memory_drawing import size_ticks
from dsprof.reports.tables.time import moment

_PLOT_PX, _BARS_PX, _TOP_PX, _AXIS_PX = 140, 70, 14, 20
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
            gridlines(at for _, at in grid),
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


class _Quantity(NamedTuple):
    """What one drawing shows of each span."""

    label: str
    of: str
    value: Callable[[TimeSpan], float | None]
    format: Callable[[float | None], str]
    ticks: Callable[[float], Iterator[float]] = ticks


_QUANTITIES = (
    _Quantity(
        "Bytes per second", "mean over ranks", lambda span: span.bytes / _seconds(span), fmt.rate
    ),
    _Quantity(
        "Share of time blocked in communication",
        "mean over ranks",
        lambda span: span.waited_ns / max(span.recorded_ns, 1),
        fmt.share,
    ),
    _Quantity(
        "Peak memory of the process",
        "of the rank with most",
        lambda span: span.rss_bytes,
        fmt.size,
        lambda most: size_ticks(int(most)),
    ),
)


def time_drawings(found: TimeSpans) -> Iterator[Drawing]:
    """Yield what ranks without steps did over time, a drawing for each quantity that is known."""
    drawn = []
    for quantity in _QUANTITIES:
        known = ((span.begin_s, quantity.value(span)) for span in found.spans)
        values = {begin_s: value for begin_s, value in known if value is not None}
        if max(values.values(), default=0) > 0:
            drawn.append(_time_drawing(found, quantity, values))
    widest_px = max((one.lanes_px for one in drawn), default=0)
    yield from (replace(one, least_lanes_px=widest_px) for one in drawn)


def _time_drawing(found: TimeSpans, quantity: _Quantity, values: Mapping[int, float]) -> Drawing:
    begin_s, end_s = found.spans[0].begin_s, found.spans[-1].begin_s + found.length_s
    most, across = max(values.values()), WIDTH / (end_s - begin_s)
    bottom = _TOP_PX + _BARS_PX
    heights = {at_s: value / most * _BARS_PX for at_s, value in values.items()}
    width = found.length_s * across
    bars = "".join(
        rectangle((at_s - begin_s) * across, bottom - height, width, height)
        for at_s, height in heights.items()
    )
    grid = [(value, bottom - value / most * _BARS_PX) for value in quantity.ticks(most)]
    starts = [span.begin_s for span in found.spans]
    length = fmt.duration(found.length_s * 1e9)
    return Drawing(
        sentence=f"{quantity.label}, {quantity.of}, in spans of {length}, at most "
        f"{quantity.format(most)}.",
        height_px=bottom + _AXIS_PX,
        shapes=(
            gridlines(at for _, at in grid),
            Shape(bars, "series-1"),
        ),
        words=tuple(
            Word((starts[place] - begin_s) * across / 10, bottom + 15, label, "start")
            for place, label in spread([moment(at_s) for at_s in starts])
        ),
        lanes=tuple(Word(100, at + 4, quantity.format(value)) for value, at in grid),
        keys=(Key(f"{quantity.label.lower()}, {quantity.of}", "series-1"),),
    )


def _seconds(span: TimeSpan) -> float:
    return max(span.recorded_ns, 1) / 1e9
