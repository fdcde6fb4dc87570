"""Sums by path as a flame graph: below each frame what it consists of, as wide as its share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dsprof.diagnosis.parts.communication import CallSiteRow
from dsprof.diagnosis.parts.memory import SnapshotRow
from dsprof.findings import formatting as fmt
from dsprof.findings.frames import library, shortened
from dsprof.reports.html.drawing import Key

MOST_FRAMES, MOST_DEPTH = 120, 24
_ROW_PX = 20
_ROOM_FOR_WORDS = 1.5  # per cent of the width: less shows no letter

_FROM_CPP = "no line of the program: called from C++"

Kind = Literal["whole", "own", "library", "others"]


class Frame(NamedTuple):
    """What a frame is called, what it is, and what is written on it: its name where empty."""

    name: str
    kind: Kind
    label: str = ""


Path = tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """A frame as drawn; `left` and `width` are per cent."""

    left: float
    width: float
    top_px: int
    label: str
    title: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class FlameGraph:
    """A picture, and the sentence that says what it shows."""

    sentence: str
    height_px: int
    boxes: tuple[Box, ...]
    keys: tuple[Key, ...]


def waiting_lines(rows: Sequence[CallSiteRow]) -> FlameGraph | None:
    """Draw exposed time by phase, file, function, line, operation; None where none was measured."""
    paths: dict[Path, float] = {
        (
            Frame(row.phase or "outside all phases", "library"),
            *_site(row.site),
            Frame(row.op, "library"),
        ): row.exposed_ns
        for row in rows
        if row.exposed_ns and row.exposed_ns > 0
    }
    labels = {"own": "line of the program", "library": "phase, operation", "others": "others"}
    return _flame_graph(paths, "exposed communication per rank and step", fmt.duration, labels)


def _site(site: str) -> Path:
    """Return the frames of "file:line function": traces hold no callers."""
    file, _, place = site.rpartition(":")
    line, _, function = place.partition(" ")
    if not (file and function):
        return (Frame(site or _FROM_CPP, "own", shortened(site)),)
    return (
        Frame(file, "own", shortened(f"{file}:").rstrip(":")),
        Frame(f"{function} in {file}", "own", function),
        Frame(site, "own", f"line {line}"),
    )


def held_memory(row: SnapshotRow) -> FlameGraph | None:
    """Draw memory in use by call stack; None where no stack was recorded."""
    paths: dict[Path, float] = {
        tuple(map(_call, one.calls)) or (Frame("no call stack recorded", "others"),): one.bytes
        for one in row.stacks
        if one.bytes > 0
    }
    labels = {
        "own": "call in the program",
        "library": "call in a library",
        "others": "others, or no call stack",
    }
    return _flame_graph(paths, f"in use on rank {row.rank}", fmt.size, labels)


def _call(call: str) -> Frame:
    """Return the frame of a call, on which its function comes first: few letters may have room."""
    place, _, function = shortened(call).partition(" ")
    return Frame(call, "library" if library(call) else "own", f"{function} {place}".lstrip())


def _flame_graph(
    paths: dict[Path, float], what: str, shown: Callable[[float], str], labels: dict[str, str]
) -> FlameGraph | None:
    whole = sum(paths.values())
    if not whole:
        return None
    title = f"{shown(whole)} {what}"
    boxes = [Box(0, 100, 0, title, title, "whole"), *_Layout(paths, shown).below((), 0)]
    kinds = {box.kind for box in boxes}
    largest = max(paths, key=lambda path: paths[path])
    named = next((frame for frame in reversed(largest) if frame.kind == "own"), largest[-1])
    return FlameGraph(
        sentence=f"{title}; the largest part is {shown(paths[largest])} in {named.name}.",
        height_px=_ROW_PX + max(box.top_px for box in boxes),
        boxes=tuple(boxes),
        keys=tuple(Key(label, f"flame-{kind}") for kind, label in labels.items() if kind in kinds),
    )


class _Layout:
    """Places the largest frames; those of a parent that are left out are one frame."""

    def __init__(self, paths: dict[Path, float], shown: Callable[[float], str]) -> None:
        self._shown, self._whole = shown, sum(paths.values())
        self._sums = defaultdict[Path, float](float)
        for path, value in paths.items():
            for depth in range(1, min(len(path), MOST_DEPTH) + 1):
                self._sums[path[:depth]] += value
        order = sorted(self._sums, key=lambda path: (-self._sums[path], len(path), path))
        self._kept = defaultdict[Path, list[Path]](list)
        self._left_out = defaultdict[Path, float](float)
        for path in order[:MOST_FRAMES]:
            self._kept[path[:-1]].append(path)
        for path in order[MOST_FRAMES:]:
            self._left_out[path[:-1]] += self._sums[path]

    def below(self, parent: Path, left: float) -> Iterator[Box]:
        """Yield what is below a path whose frame begins at `left`."""
        for path in self._kept[parent]:
            yield self._box(path[-1], len(path), left, self._sums[path])
            yield from self.below(path, left)
            left += self._sums[path]
        if rest := self._left_out[parent]:
            yield self._box(Frame("others", "others"), len(parent) + 1, left, rest)

    def _box(self, frame: Frame, depth: int, left: float, value: float) -> Box:
        share = value / self._whole
        label = frame.label or frame.name
        return Box(
            left=100 * left / self._whole,
            width=100 * share,
            top_px=depth * _ROW_PX,
            label=label if 100 * share >= _ROOM_FOR_WORDS else "",
            title=f"{frame.name}: {self._shown(value)}, {fmt.share(share)}",
            kind=frame.kind,
        )
