"""Drawings of steps: the mean one as a bar, all of them as columns."""

from __future__ import annotations

from collections.abc import Sequence

from dsprof.findings import formatting as fmt
from dsprof.reports.content import PARTS, Part, StepBar
from dsprof.reports.html.drawing import (
    WIDTH,
    Drawing,
    Key,
    Shape,
    Word,
    gridlines,
    rectangle,
    spread,
    ticks,
)
from dsprof.reports.tables.time import moment

_BAR_PX, _BETWEEN_PX = 34, 8
_PHONE_CHARACTERS = 36  # below a drawing beside long names of ranks
_ROOM_FOR_WORDS = 0.09  # share of a bar on a phone that `61 %` needs
_PALE = ("idle", "other")  # parts on which pale words could not be read
_COLUMNS_PX, _AXIS_PX, _TOP_PX, _LINE_PX = 140, 20, 14, 15


def step_bar(step: StepBar) -> Drawing:
    """Stack the parts of a step side by side."""
    shapes, words = _stacked(step)
    return Drawing(
        sentence=_sentence(step),
        height_px=_BAR_PX,
        shapes=shapes,
        words=words,
        keys=tuple(Key(_told(part), part.key) for part in _drawn(step.parts)),
    )


def step_pair(before: StepBar, after: StepBar) -> Drawing:
    """Draw the steps of two runs below each other, on one scale."""
    longest_ns = max(before.total_ns, after.total_ns, 1)
    below = _BAR_PX + _BETWEEN_PX
    upper = _stacked(before, scale=before.total_ns / longest_ns)
    lower = _stacked(after, scale=after.total_ns / longest_ns, top=below)
    drawn = {part.key: part.label for bar in (before, after) for part in _drawn(bar.parts)}
    return Drawing(
        sentence=f"Before: {_sentence(before)} After: {_sentence(after)}",
        height_px=below + _BAR_PX,
        shapes=(*upper[0], *lower[0]),
        words=(*upper[1], *lower[1]),
        lanes=(_lane("before", before, 22), _lane("after", after, below + 22)),
        keys=tuple(Key(drawn[key], key) for key in PARTS if key in drawn),
    )


def _stacked(
    step: StepBar, *, scale: float = 1.0, top: float = 0
) -> tuple[tuple[Shape, ...], tuple[Word, ...]]:
    """Return the parts of a step in a row, and the shares of those that have room for it."""
    shapes, words, begun = [], [], 0.0
    for part in _drawn(step.parts):
        width = part.share * scale
        if width >= _ROOM_FOR_WORDS:
            middle = 100 * (begun + width / 2)
            colour = "on-pale" if part.key in _PALE else ""
            words.append(Word(middle, top + 22, fmt.share(part.share), "inside", colour))
        path = rectangle(begun * WIDTH, top, width * WIDTH, _BAR_PX)
        shapes.append(Shape(path, part.key, _told(part)))
        begun += width
    return tuple(shapes), tuple(words)


def _lane(name: str, step: StepBar, y: float) -> Word:
    return Word(100, y, f"{name} {fmt.duration(step.total_ns)}")


def _sentence(step: StepBar) -> str:
    told = ", ".join(map(_told, _drawn(step.parts)))
    return f"Step of {fmt.duration(step.total_ns)}: {told}."


def step_columns(bars: Sequence[StepBar]) -> Drawing:
    """Draw the time of each step, split into parts, with its fastest and slowest rank."""
    longest = max(max(bar.total_ns, bar.slowest_ns or 0) for bar in bars) or 1
    bottom = _TOP_PX + _COLUMNS_PX
    scale, width = _COLUMNS_PX / longest, WIDTH / len(bars)
    paths: dict[str, str] = {}
    marks = ""
    for place, bar in enumerate(bars):
        left, top = place * width, float(bottom)
        for part in bar.parts if bar.is_split else ():
            height = (part.ns or 0) * scale
            top -= height
            if height:
                column = rectangle(left + width * 0.08, top, width * 0.84, height)
                paths[part.key] = paths.get(part.key, "") + column
        if not bar.is_split:
            height = bar.total_ns * scale
            column = rectangle(left + width * 0.08, bottom - height, width * 0.84, height)
            paths["other"] = paths.get("other", "") + column
        for ns in {bar.fastest_ns, bar.slowest_ns} - {None, bar.total_ns}:
            at = bottom - (ns or 0) * scale
            marks += f"M{left + width * 0.08:.1f} {at:.1f}h{width * 0.84:.1f}"
    grid = [(value, bottom - value * scale) for value in ticks(longest)]
    slowest = max(bars, key=lambda bar: bar.total_ns)
    means = f" and {fmt.count(bars[0].steps)} steps" if bars[0].steps > 1 else ""
    of = "that of steps" if slowest.steps > 1 else "step"
    keys = [Key(part.label, part.key) for part in bars[0].parts if part.key in paths]
    times = _times(bars, bottom + 15 + _LINE_PX)
    return Drawing(
        sentence=f"Time of {fmt.plural(sum(bar.steps for bar in bars), 'step')}, mean over ranks"
        f"{means}; the longest is {of} {slowest.label} with {fmt.duration(slowest.total_ns)}.",
        height_px=bottom + _AXIS_PX + _LINE_PX * bool(times),
        shapes=(
            gridlines(y for _, y in grid),
            *(Shape(path, key) for key, path in paths.items()),
            *([Shape(marks, "ink", kind="line")] if marks else []),
        ),
        words=(*step_labels([bar.label for bar in bars], bottom + 15), *times),
        lanes=(
            *(Word(100, y + 4, fmt.duration(value)) for value, y in grid),
            step_lane(bottom + 15),
            *(Word(100, one.y, "UTC") for one in times[:1]),
        ),
        keys=tuple(keys) if slowest.is_split else (),
    )


def _times(bars: Sequence[StepBar], y: float) -> list[Word]:
    """Say when some of the steps began; nothing where that is unknown."""
    known = [moment(bar.began_s) for bar in bars if bar.began_s is not None]
    some = spread(known) if len(known) == len(bars) else ()
    return [Word(place * 100 / len(bars), y, label, "start") for place, label in some]


def step_labels(labels: Sequence[str], y: float) -> list[Word]:
    """Name some of the columns below them; the first begins at the left, not in its middle."""
    fitting = int(_PHONE_CHARACTERS / (1.5 * max(map(len, labels)) + 1))
    some = spread(labels, at_most=max(min(fitting, 6), 1))
    words = [Word((place + 0.5) * 100 / len(labels), y, label) for place, label in some]
    return [Word(0, y, words[0].text, "start"), *words[1:]]


def step_lane(y: float) -> Word:
    """Say at the left what these labels are."""
    return Word(100, y, "step")


def _drawn(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if part.share and part.ns is not None]


def _told(part: Part) -> str:
    return f"{part.label} {fmt.share(part.share)}, {fmt.duration(part.ns)}"
