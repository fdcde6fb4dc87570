"""A step in detail as a drawing: lanes by rank, bars by kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set

from dsprof.diagnosis.parts.timelines import Bar, Timeline
from dsprof.findings import formatting as fmt
from dsprof.reports.html.drawing import (
    SERIES,
    WIDTH,
    Drawing,
    Key,
    Shape,
    Word,
    rectangle,
    ticks,
    upright,
)

LANES = {
    "activity": "activity",
    "phase": "phases",
    "communication": "communication",
    "copies": "copies",
}
"""Lanes that dsprof records, from the top; others are named by their stream or process group."""

WHOLES = {
    "recording": "The recording",
    "dump": "Calls that the flight recorders held",
}
"""What is shown in place of a step, by the reason."""

MAX_BARS = 3000
"""Bars of one figure: beyond, drawing and zooming become slow."""

_PHASES = ("forward", "backward", "step")
_NEAR_THE_EDGE = 95  # per cent: words would leave the page
_MOST_LETTERS = 22  # of the name of a lane
_LANE_PX, _BAR_PX, _GAP_PX, _TOP_PX, _AXIS_PX = 14, 11, 8, 4, 20

Row = tuple[int, str]  # rank, lane


def timeline_drawing(step: Timeline, stragglers: Set[int]) -> Drawing:
    """Draw a step on one clock, a group of lanes a rank."""
    bars = sorted(step.bars, key=lambda bar: bar.start_ns - bar.end_ns)[:MAX_BARS]
    tops = {row: _TOP_PX + _LANE_PX * n + _GAP_PX * g for row, (n, g) in lane_places(bars).items()}
    scale = WIDTH / max(step.duration_ns, 1)
    shapes = []
    for key, alike in by_kind(bars).items():
        path = "".join(
            rectangle(
                b.start_ns * scale, tops[b.rank, b.lane], (b.end_ns - b.start_ns) * scale, _BAR_PX
            )
            for b in alike
        )
        shapes.append(Shape(path, key.colour, key.label))
    bottom = max(tops.values()) + _LANE_PX
    marks = list(ticks(step.duration_ns, 4))
    name = WHOLES.get(step.why, f"Step {step.step}")
    return Drawing(
        sentence=f"{name}, {fmt.duration(step.duration_ns)}: what each rank did when.",
        height_px=bottom + _AXIS_PX,
        shapes=(
            Shape("".join(upright(ns * scale, 0, bottom) for ns in marks), "line", kind="line"),
            *shapes,
            *_frames(tops, stragglers),
        ),
        words=(
            Word(0, bottom + 14, "0", "start"),
            *(_tick(ns * scale * 100 / WIDTH, bottom + 14, fmt.duration(ns)) for ns in marks),
        ),
        lanes=tuple(_lanes(tops)),
        keys=tuple(by_kind(bars)),
    )


def _tick(x: float, y: float, text: str) -> Word:
    return Word(x, y, text, "end" if x > _NEAR_THE_EDGE else "")


def _frames(tops: Mapping[Row, float], ranks: Set[int]) -> Iterator[Shape]:
    """Frame the lanes of ranks that a finding names."""
    for rank in sorted(ranks):
        if mine := [top for (other, _), top in tops.items() if other == rank]:
            height = max(mine) - min(mine) + _LANE_PX + 2
            frame = rectangle(0, min(mine) - 3, WIDTH, height)
            yield Shape(frame, "ink", f"rank {rank}: named by a finding", "outline")


def _lanes(tops: Mapping[Row, float]) -> Iterator[Word]:
    """Name each lane, and with the first of a rank the rank."""
    before = None
    for (rank, lane), top in tops.items():
        is_first = rank != before
        name = f"rank {rank} " * is_first + LANES.get(lane, lane.removeprefix("group "))
        yield Word(100, top + 9, shorten(name), "strong" if is_first else "")
        before = rank


def shorten(name: str) -> str:
    """Cut the name of a lane to what has room beside the bars."""
    return (
        name
        if len(name) <= _MOST_LETTERS
        else name[: _MOST_LETTERS - 1] + "\N{HORIZONTAL ELLIPSIS}"
    )


def lane_places(bars: Sequence[Bar]) -> dict[Row, tuple[int, int]]:
    """Return for each lane its number, and that of its rank among those drawn."""
    rows = sorted({(b.rank, b.lane) for b in bars}, key=lambda row: (row[0], lane_order(row[1])))
    ranks = sorted({rank for rank, _ in rows})
    return {row: (number, ranks.index(row[0])) for number, row in enumerate(rows)}


def lane_order(lane: str) -> tuple[int, str]:
    """Sort lanes as LANES does, others below."""
    return (list(LANES).index(lane) if lane in LANES else len(LANES)), lane


def by_kind(bars: Sequence[Bar]) -> dict[Key, list[Bar]]:
    """Return the bars by what the legend says: operations take colours in turn."""
    operations = sorted({bar.kind for bar in bars if bar.is_communication})
    groups: dict[Key, list[Bar]] = defaultdict(list)
    for bar in sorted(bars, key=lambda bar: (lane_order(bar.lane), bar.rank, bar.start_ns)):
        groups[_key(bar, operations)].append(bar)
    return groups


def _key(bar: Bar, operations: Sequence[str]) -> Key:
    if bar.kind == "blocked":
        return Key("blocked", "exposed_comm")
    if bar.is_communication:
        return Key(bar.kind, f"series-{operations.index(bar.kind) % SERIES + 1}")
    if bar.kind in _PHASES:
        return Key(bar.kind, f"phase-{bar.kind}")
    return Key(bar.kind, bar.kind if bar.kind in ("compute", "copies", "idle") else "other")
