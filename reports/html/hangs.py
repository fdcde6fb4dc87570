"""The picture of a hang: groups as lanes, ranks as columns, waits as arrows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dsprof.analysis.hang.model import GroupWaits, HangReport
from dsprof.findings import formatting as fmt

MAX_LANES = 8
MAX_COLUMNS = 12

_LANE, _TOP, _CELL_Y, _ARC, _LINE = 76, 34, 56, 30, 14
_LEAST_WIDTH, _CHAR, _CAPITAL, _MARGIN = 40, 7, 8.5, 6
_TITLE = 42  # characters that fit a phone

_STATES = ("absent", "different", "unfinished", "unknown", "waiting")
"""A rank that is in several states of a group is shown in the first of them."""


@dataclass(frozen=True, slots=True)
class Column:
    """Ranks that are in the same state in every group."""

    label: str
    x: float
    is_root: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """The ranks of a column in a group."""

    x: float
    y: float
    state: str
    text: str


@dataclass(frozen=True, slots=True)
class Arrow:
    """A wait of one column for another; `is_because` leads to where that one waits itself."""

    path: str
    is_because: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """A process group."""

    y: float
    lines: tuple[str, ...]  # of its title
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """All of it, in pixels."""

    width: float
    height: float
    columns: tuple[Column, ...]
    lanes: tuple[Lane, ...]
    arrows: tuple[Arrow, ...]
    states: tuple[str, ...]  # that occur, for the legend
    left_out: int  # groups
    undrawn: str  # ranks, and why


_Class = tuple[tuple[str, ...], list[int]]  # states in the groups shown, and the ranks in them


def picture(report: HangReport) -> Picture | None:
    """Lay out a hang; None where no rank is known to wait."""
    groups = [group for group in report.groups if group.absent or group.different] or report.groups
    if not groups:
        return None
    shown = groups[:MAX_LANES]
    roots = {rank for verdict in report.verdicts[:1] for rank in verdict.ranks}
    classes = _classes(shown, roots)
    columns = tuple(_columns(classes, roots))
    titles = [_title(group) for group in shown]
    deep = _LINE * (max(map(len, titles)) - 1)
    lanes = tuple(
        Lane(y, lines, tuple(_marks(n, y + _CELL_Y + deep, classes, columns)))
        for n, lines in enumerate(titles)
        for y in [float(_TOP + n * (_LANE + deep))]
    )
    found = {mark.state for lane in lanes for mark in lane.marks}
    return Picture(
        width=max(
            columns[-1].x + _width(columns[-1].label) / 2 + _MARGIN,
            *(len(line) * _CAPITAL for lines in titles for line in lines),
        ),
        height=_TOP + (_LANE + deep) * len(lanes),
        columns=columns,
        lanes=lanes,
        arrows=(*_waits(lanes), *_reasons(lanes)),
        states=tuple(state for state in _STATES if state in found),
        left_out=len(groups) - len(shown),
        undrawn=_undrawn(report, shown, classes),
    )


def _classes(groups: Sequence[GroupWaits], roots: set[int]) -> list[_Class]:
    """Put ranks together that are in the same state everywhere; the last column has the rest."""
    ranks = sorted({rank for group in groups for rank in group.ranks} | roots)
    alike: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank in ranks:
        states = *(_state(group, rank) for group in groups), str(rank in roots)
        alike[states].append(rank)
    found = sorted(alike.items(), key=lambda item: item[1][0])
    if len(found) <= MAX_COLUMNS:
        return found
    chosen = sorted(found, key=lambda item: not roots & {*item[1]})[:MAX_COLUMNS]
    return sorted(chosen, key=lambda item: item[1][0])


def _state(group: GroupWaits, rank: int) -> str:
    return next((state for state in _STATES if rank in getattr(group, state)), "")


def _columns(classes: Sequence[_Class], roots: set[int]) -> Iterator[Column]:
    left = float(_MARGIN)
    for _, ranks in classes:
        label = fmt.ranks(ranks, at_most=2)
        width = _width(label)
        yield Column(label, left + width / 2, bool(roots & {*ranks}))
        left += width


def _width(label: str) -> float:
    return max(_LEAST_WIDTH, len(label) * _CHAR + 10)


def _undrawn(report: HangReport, shown: Sequence[GroupWaits], classes: Sequence[_Class]) -> str:
    drawn = {rank for _, ranks in classes for rank in ranks}
    missing = sorted({rank for group in report.groups for rank in group.ranks} - drawn)
    if not missing:
        return ""
    is_full = any(rank in group.ranks for rank in missing for group in shown)
    why = f"only {MAX_COLUMNS} columns have room" if is_full else "they are in none of these groups"
    return f"Not drawn: {fmt.named_ranks(missing)}; {why}."


def _title(group: GroupWaits) -> tuple[str, ...]:
    """Name the call and its group, in two lines where one is too long."""
    call = f"{group.op} {fmt.count(group.number)}" if group.number is not None else group.op
    waited = f", {fmt.duration(group.waited_ns)}" if group.waited_ns else ""
    title = f"{call} of {group.group}{waited}"
    return (title,) if len(title) <= _TITLE else (_cut(f"{call}{waited}"), _cut(group.group))


def _cut(text: str) -> str:
    return text if len(text) <= _TITLE else f"{text[: _TITLE - 1]}…"


def _marks(
    number: int, y: float, classes: Sequence[_Class], columns: Sequence[Column]
) -> Iterator[Mark]:
    for (states, ranks), column in zip(classes, columns, strict=True):
        if state := states[number]:
            yield Mark(column.x, y, state, f"{fmt.named_ranks(ranks)}: {state}")


def _waits(lanes: Sequence[Lane]) -> Iterator[Arrow]:
    for lane in lanes:
        awaited = [mark for mark in lane.marks if mark.state != "waiting"]
        for waiter in (mark for mark in lane.marks if mark.state == "waiting"):
            for mark in awaited:
                bend = waiter.y - _ARC
                start, end = f"{waiter.x:g} {waiter.y - 11:g}", f"{mark.x:g} {mark.y - 13:g}"
                yield Arrow(f"M{start}C{waiter.x:g} {bend:g} {mark.x:g} {bend:g} {end}")


def _reasons(lanes: Sequence[Lane]) -> Iterator[Arrow]:
    """Lead from where ranks are absent to where they wait themselves."""
    for lane in lanes:
        for mark in (mark for mark in lane.marks if mark.state == "absent"):
            for other in lanes:
                for there in other.marks:
                    if (there.x, there.state) == (mark.x, "waiting"):
                        down = 1 if there.y > mark.y else -1
                        start, end = mark.y + 12 * down, there.y - 14 * down
                        yield Arrow(f"M{mark.x:g} {start:g}L{there.x:g} {end:g}", is_because=True)
