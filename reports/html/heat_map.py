"""Ranks x steps at a glance: a slow rank is a dark row, a slow step a dark column."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import msgspec

from dsprof.diagnosis.parts.steps import StepMap, StepMark
from dsprof.findings import formatting as fmt
from dsprof.reports.html.drawing import WIDTH, Drawing, Key, Shape, Word, rectangle, upright
from dsprof.reports.html.step_drawings import step_labels, step_lane

LEVELS = 5
_ROW_PX, _TOP_PX, _AXIS_PX = 14, 12, 18
_MOST_PX = 224  # of all rows together: many ranks are thinner rows
_LEAST_RANGE = 0.5  # of the usual time: below it noise would look like trouble
_FRAME_PX = 8  # a frame as thin as a thin row would hide its cells

_MARKS = {
    "straggler": Key("the others waited long for this rank", "ink", "outline"),
    "outlier": Key("unusual step", "ink", "triangle"),
    "change": Key("the pace changes", "ink", "upright"),
}


def heat_map(found: StepMap) -> Drawing | None:
    """Draw what communication waits leave of each step; None where there is one rank or step."""
    if len(found.ranks) < 2 or len(found.steps) < 2:
        return None
    grid = [list(_outside(*row)) for row in zip(found.total_ns, found.exposed_ns, strict=True)]
    known = sorted(ns for row in grid for ns in row if ns is not None)
    if not known:
        return None
    found = msgspec.structs.replace(found, marks=_outstanding(found))
    usual, most = known[len(known) // 4], known[-1]  # of two ranks one may be slow all the time
    span = max(most - usual, usual * _LEAST_RANGE) or 1
    levels = [[_level(ns, usual, span) for ns in row] for row in grid]
    height = min(_ROW_PX, _MOST_PX / len(grid))
    bottom = round(_TOP_PX + len(grid) * height)
    return Drawing(
        sentence=_sentence(found),
        height_px=bottom + _AXIS_PX,
        shapes=(*_cells(levels, height), *_marks(found, height, bottom)),
        words=tuple(step_labels([_range(*steps) for steps in found.steps], bottom + 13)),
        lanes=(*_lanes(found, height), step_lane(bottom + 13)),
        keys=(*_keys(usual, most, span), *_mark_keys(found)),
    )


def _outstanding(found: StepMap) -> list[StepMark]:
    """Return the marks; none of outliers above most columns, as where each is of many steps."""
    unusual = {mark.column for mark in found.marks if mark.kind == "outlier"}
    if 2 * len(unusual) <= len(found.steps):
        return found.marks
    return [mark for mark in found.marks if mark.kind != "outlier"]


def _keys(usual: int, most: int, span: float) -> Iterator[Key]:
    yield Key(f"usual, {fmt.duration(usual)}", "heat-0")
    if level := _level(most, usual, span):
        yield Key(f"up to {fmt.duration(most)}", f"heat-{level}")


def _mark_keys(found: StepMap) -> Iterator[Key]:
    """Name the marks that are drawn."""
    kinds = {mark.kind for mark in found.marks if mark.kind != "straggler" or mark.row is not None}
    for kind, key in _MARKS.items():
        if kind == "straggler" and _most_ranks(found) > 1:
            key = replace(key, label="the others waited long for a rank of this row")
        if kind in kinds:
            yield key


def _most_ranks(found: StepMap) -> int:
    """Return how many neighbours share a row, at most: some of them may be missing."""
    return max(last - first + 1 for first, last in found.ranks)


def _outside(total_ns: Sequence[int], exposed_ns: Sequence[int]) -> Iterator[int | None]:
    for total, exposed in zip(total_ns, exposed_ns, strict=True):
        yield None if total < 0 else total - max(exposed, 0)


def _level(ns: int | None, usual: int, span: float) -> int | None:
    return None if ns is None else round(min(max(ns - usual, 0) / span, 1) * LEVELS)


def _cells(levels: Sequence[Sequence[int | None]], height: float) -> Iterator[Shape]:
    """Draw a path for each level of darkness."""
    width, gap = WIDTH / len(levels[0]), height / 14
    paths = [""] * (LEVELS + 1)
    for y, row in enumerate(levels):
        for x, level in enumerate(row):
            if level is not None:
                top = _TOP_PX + y * height
                paths[level] += rectangle(x * width, top, width * 0.94, height - gap)
    return (Shape(path, f"heat-{level}") for level, path in enumerate(paths) if path)


def _marks(found: StepMap, height: float, bottom: int) -> Iterator[Shape]:
    """Frame stragglers, put a triangle above outliers, and a line where the pace changes."""
    width, beyond = WIDTH / len(found.steps), max(_FRAME_PX - height, 0) / 2
    for run in _runs(found.marks):
        first, last = run[0], run[-1]
        frame = rectangle(
            first.column * width,
            _TOP_PX + (first.row or 0) * height - beyond,
            (last.column - first.column + 0.94) * width,
            height + 2 * beyond - 1,
        )
        yield Shape(frame, "ink", _said(found, run), "outline")
    for mark in found.marks:
        left = mark.column * width
        if mark.kind == "outlier":
            middle, half = left + width * 0.47, min(width / 2, 5)
            path = f"M{middle - half:.1f} 2h{2 * half:.1f}l-{half:.1f} 7z"
            yield Shape(path, "ink", mark.text)
        elif mark.kind == "change":
            yield Shape(upright(left, 0, bottom), "ink", mark.text, "line")


def _runs(marks: Iterable[StepMark]) -> Iterator[list[StepMark]]:
    """Join stragglers that are neighbours in a row: a frame around each cell would hatch it."""
    late = [mark for mark in marks if mark.kind == "straggler" and mark.row is not None]
    late.sort(key=lambda mark: (mark.row, mark.column))
    place = enumerate(late)
    for _, run in groupby(place, key=lambda at: (at[1].rank, at[1].row, at[1].column - at[0])):
        yield [mark for _, mark in run]


def _said(found: StepMap, run: Sequence[StepMark]) -> str:
    if len(run) == 1:
        return run[0].text
    first, last = found.steps[run[0].column][0], found.steps[run[-1].column][1]
    return f"The others wait for rank {run[0].rank} in steps {first} to {last}"


def _lanes(found: StepMap, height: float) -> Iterator[Word]:
    """Name rows, as many as have room, those with most stragglers first; in most steps: strong."""
    counts = Counter(mark.row for mark in found.marks if mark.kind == "straggler")
    strong = [row for row in range(len(found.ranks)) if 2 * counts[row] >= len(found.steps)]
    latest = [row for row, _ in counts.most_common(1) if row is not None]
    stride = math.ceil(_ROW_PX / height)
    named: list[int] = []
    for row in (*strong, *latest, *range(0, len(found.ranks), stride)):
        if all(abs(row - other) >= stride for other in named):
            named.append(row)
    for row in sorted(named):
        ranks = found.ranks[row]
        noun = "rank" if ranks[0] == ranks[1] else "ranks"
        name = found.row_names[row] if found.row_names else f"{noun} {_range(*ranks)}"
        y = _TOP_PX + (row + 0.5) * height + 4
        yield Word(100, round(y, 1), name, "strong" if row in strong else "")


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _sentence(found: StepMap) -> str:
    # Not from the first to the last: ranks in and between rows may be missing.
    rows, most = len(found.ranks), _most_ranks(found)
    whose = f"of {rows} ranks" if most == 1 else f"in {rows} rows of up to {most} ranks"
    if found.row_names:
        whose = f"from {found.row_names[0]} to {found.row_names[-1]}, mean over their ranks,"
    text = f"Time outside communication waits {whose}"
    text += f" in steps {found.steps[0][0]} to {found.steps[-1][1]}."
    if found.row_hosts:
        hosts = fmt.plural(found.row_hosts, "host")
        text += f" A row is {hosts}, and shows their rank that waits least."
    late = Counter(mark.rank for mark in found.marks if mark.kind == "straggler")
    for rank, count in late.most_common(1):
        text += f" Most often late: rank {rank}, in {fmt.plural(count, 'column')}."
    others = [mark for mark in found.marks if mark.kind != "straggler"]
    return " ".join([text, *(f"{mark.text}." for mark in others[:3])])
