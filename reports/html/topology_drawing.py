"""Ranks on hosts, and below them a row for each kind of group: what has one number is one group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from dsprof.diagnosis.parts.topology import Topology
from dsprof.findings import formatting as fmt
from dsprof.reports.html.drawing import SERIES, WIDTH, Drawing, Shape, Word, rectangle, spread

_ROW_PX, _BAR_PX = 22, 18
_LONGEST_NAME = 24
_LETTER = 2.6  # per cent of the width of a drawing on a phone


def topology_drawing(found: Topology) -> Drawing | None:
    """Draw hosts and groups; None where there is nothing to show."""
    if not found.layouts or not found.ranks:
        return None
    names = list(dict.fromkeys(filter(None, found.hosts)))
    on_host = [names.index(host) if host else -1 for host in found.hosts]
    labels = ["host", *(_label(one.name, one.groups) for one in found.layouts), "rank"]
    shapes, words = [*_row(0, on_host, [])], [*_words(0, on_host, names)]
    for row, layout in enumerate(found.layouts, 1):
        groups = [str(number) for number in range(max(layout.group_of, default=-1) + 1)]
        shapes += _row(row, layout.group_of, groups)
        words += _words(row, layout.group_of, groups)
    below = (len(labels) - 1) * _ROW_PX + 13
    for place, rank in spread([*map(str, found.ranks)], at_most=8):
        words.append(Word((place + 0.5) * 100 / len(found.ranks), below, rank))
    return Drawing(
        sentence=_sentence(found, len(names)),
        height_px=_ROW_PX * len(labels),
        shapes=tuple(shapes),
        words=tuple(words),
        lanes=tuple(Word(100, n * _ROW_PX + 13, label) for n, label in enumerate(labels)),
    )


def _label(name: str, groups: int) -> str:
    cut = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
    return f"{cut} \N{MULTIPLICATION SIGN} {groups}" if groups > 1 else cut


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, float, float]]:
    """Yield the number of neighbours that have the same one, and where they begin and end."""
    across = WIDTH / len(numbers)
    for number, run in groupby(enumerate(numbers), key=itemgetter(1)):
        places = [place for place, _ in run]
        if number >= 0:
            yield number, places[0] * across, (places[-1] + 1) * across


def _row(row: int, numbers: Sequence[int], groups: Sequence[str]) -> Iterator[Shape]:
    """Draw each run of neighbours; hosts, which are no groups, have no colour of their own."""
    gap = min(WIDTH / len(numbers) * 0.06, 3)
    for number, left, right in _runs(numbers):
        path = rectangle(left, row * _ROW_PX, right - left - gap, _BAR_PX)
        colour = f"series-{number % SERIES + 1}" if groups else "other"
        yield Shape(path, colour, f"group {number}" if groups else "", "tint")


def _words(row: int, numbers: Sequence[int], names: Sequence[str]) -> Iterator[Word]:
    """Name the runs that have room for it."""
    for number, left, right in _runs(numbers):
        if len(names[number]) * _LETTER <= (right - left) / WIDTH * 100:
            yield Word((left + right) / WIDTH * 50, row * _ROW_PX + 13, names[number], "strong")


def _sentence(found: Topology, hosts: int) -> str:
    groups = ", ".join(
        f"{one.name}: {fmt.plural(one.groups, 'group')} of up to {fmt.plural(one.size, 'rank')}"
        for one in found.layouts
    )
    where = fmt.plural(hosts, "host") if hosts else "unknown hosts"
    return f"{fmt.plural(len(found.ranks), 'rank')} on {where}. {groups}."
