"""Drawings that need no script: shapes stretch with the page, words keep their size.

A drawing is WIDTH units wide, however wide the page is; heights are pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

WIDTH = 1000
SERIES = 8
"""Colours for operations, groups and the like: further ones begin again."""

_LANES_PX = 64
_LETTER_PX, _CAPITAL_PX = 7, 9
_PHONE_CHARACTERS = 39  # below a drawing


@dataclass(frozen=True, slots=True)
class Shape:
    """One path: all rectangles or lines of one colour."""

    path: str
    colour: str  # its name in the style sheet
    title: str = ""  # shown while the pointer is on it
    kind: Literal["area", "line", "dashed", "outline", "tint"] = "area"


@dataclass(frozen=True, slots=True)
class Word:
    """A label: `x` is per cent of the width, `y` the baseline in pixels."""

    x: float
    y: float
    text: str
    kind: Literal["", "start", "end", "inside", "strong"] = ""
    colour: str = ""  # its name in the style sheet; "": that of its kind


@dataclass(frozen=True, slots=True)
class Key:
    """The meaning of a colour or a mark."""

    label: str
    colour: str
    kind: Literal["area", "outline", "triangle", "line", "upright", "dashed"] = "area"


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture, and the sentence that says what it shows."""

    sentence: str
    height_px: int
    shapes: tuple[Shape, ...]
    words: tuple[Word, ...] = ()
    lanes: tuple[Word, ...] = ()  # names at its left
    keys: tuple[Key, ...] = ()
    least_lanes_px: int = _LANES_PX

    @property
    def lanes_px(self) -> int:
        """Width of the names at its left: that of most, so that axes of drawings align."""
        longest_px = max((_wide(lane.text) for lane in self.lanes), default=0)
        return max(longest_px + 12, self.least_lanes_px)


def _wide(text: str) -> int:
    return sum(_CAPITAL_PX if letter.isupper() else _LETTER_PX for letter in text)


def rectangle(x: float, y: float, width: float, height: float) -> str:
    """Return a path; so narrow that it would not be seen, it is half a unit wide."""
    return f"M{_short(x)} {_short(y)}h{_short(max(width, 0.5))}v{_short(height)}H{_short(x)}z"


def line(points: Iterable[tuple[float, float]]) -> str:
    """Return a path through these points."""
    return "M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in points)


def gridlines(heights: Iterable[float]) -> Shape:
    """Return thin lines from side to side."""
    return Shape("".join(f"M0 {_short(y)}H{WIDTH}" for y in heights), "line", kind="line")


def upright(x: float, top: float, bottom: float) -> str:
    """Return a path from top to bottom."""
    return f"M{_short(x)} {_short(top)}V{_short(bottom)}"


def ticks(most: float, about: int = 3) -> Iterator[float]:
    """Yield round numbers above 0, up to `most`."""
    if most <= 0 or not math.isfinite(most):
        return
    rough = most / about
    power = 10.0 ** math.floor(math.log10(rough))
    size = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= rough)
    yield from (size * number for number in range(1, int(most / size + 1e-9) + 1))


def spread(labels: Sequence[str], at_most: int = 6) -> Iterator[tuple[int, str]]:
    """Yield as many labels as a phone has room for: the first, and others at equal distances."""
    fitting = _PHONE_CHARACTERS // (max(map(len, labels), default=0) + 2)
    stride = -(-len(labels) // min(max(fitting, 2), at_most)) or 1
    yield from ((place, labels[place]) for place in range(0, len(labels), stride))


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
