"""Memory over the run as lines, one a rank and kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsprof.diagnosis.parts.memory import RankMemory
from dsprof.findings import formatting as fmt
from dsprof.reports.html.drawing import (
    WIDTH,
    Drawing,
    Key,
    Shape,
    Word,
    gridlines,
    line,
)

MAX_RANKS = 16
"""More lines cannot be distinguished."""

KINDS = (
    ("rss", "resident memory of the process", "series-4"),
    ("allocated", "allocated on the device", "series-1"),
    ("reserved", "reserved on the device", "series-3"),
    ("stuck", "stuck in the allocator", "exposed_comm"),
    ("gathered", "gathered parameters, peak of the step", "series-6"),
    ("reducing", "gradient buckets in flight, peak of the step", "series-2"),
)
_LEAST_SHARE = 0.03  # of the largest value: a line below lies on the axis, and is in the table
_PLOT_PX, _TOP_PX, _AXIS_PX = 130, 14, 20


def memory_drawing(ranks: Sequence[RankMemory]) -> Drawing | None:
    """Draw memory at the step ends; None where no samples were taken."""
    shown = [rank for rank in ranks if len(rank.steps) > 1][:MAX_RANKS]
    series = [(rank, *one) for rank in shown for one in _series(rank)]
    most = max((max(places.values()) for *_, places in series), default=0)
    if not most:
        return None
    first, last = min(rank.steps[0] for rank in shown), max(rank.steps[-1] for rank in shown)
    bottom, across = _TOP_PX + _PLOT_PX, WIDTH / max(last - first, 1)
    shapes = [
        Shape(
            line(
                ((step - first) * across, bottom - value / most * _PLOT_PX)
                for step, value in places.items()
            ),
            colour,
            f"rank {rank.rank}: {label}, at most {fmt.size(max(places.values()))}",
            kind="line",
        )
        for rank, label, colour, places in series
        if max(places.values()) >= _LEAST_SHARE * most
    ]
    grid = [(size, bottom - size / most * _PLOT_PX) for size in size_ticks(most)]
    colours = {shape.colour for shape in shapes}
    return Drawing(
        sentence=f"Memory at the end of each step, at most {fmt.size(most)}.",
        height_px=bottom + _AXIS_PX,
        shapes=(gridlines(y for _, y in grid), *shapes),
        words=(
            Word(0, bottom + 15, f"step {first}", "start"),
            Word(100, bottom + 15, str(last), "end"),
        ),
        lanes=tuple(Word(100, y + 4, fmt.size(size)) for size, y in grid),
        keys=tuple(Key(label, colour) for _, label, colour in KINDS if colour in colours),
    )


def _series(rank: RankMemory) -> Iterator[tuple[str, str, dict[int, int]]]:
    """Yield each kind with its values by step, without steps of which it is not known."""
    for name, label, colour in KINDS:
        values = getattr(rank, f"{name}_bytes")
        if len(values) == len(rank.steps) and any(values):
            known = zip(rank.steps, values, strict=True)
            yield label, colour, {step: value for step, value in known if value is not None}


def size_ticks(most: int) -> Iterator[float]:
    """Yield three or so sizes up to `most` that are round in binary units."""
    size = 2.0 ** (most.bit_length() - 2)
    yield from (size * number for number in range(1, int(most / size) + 1))
