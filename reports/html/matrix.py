"""Pairs as a matrix: a stronger colour is more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsprof.diagnosis.parts.communication import WaitPairs
from dsprof.diagnosis.parts.topology import PeerTraffic
from dsprof.findings.wording import BINARY_UNITS, TIME_UNITS, Units


@dataclass(frozen=True, slots=True)
class Cell:
    """A number in the unit of its matrix; "" for none."""

    text: str
    part: float  # of the largest


@dataclass(frozen=True, slots=True)
class Matrix:
    """Names of rows and columns, and what there is of each pair."""

    label: str
    corner: str
    unit: str
    names: tuple[str, ...]
    rows: tuple[tuple[Cell | None, ...], ...]  # None: not known


def wait_matrix(pairs: WaitPairs) -> Matrix | None:
    """Show who waits for whom; None for two ranks, or where none waits."""
    names = tuple(map(str, pairs.ranks))
    return _matrix("Who waits for whom", "waits \\ for", names, pairs.waited_ns, TIME_UNITS)


def traffic_matrix(found: PeerTraffic) -> Matrix | None:
    """Show who sends to whom; None for two ranks, of which the table says as much."""
    names = tuple(name.removeprefix("rank ") for name in found.names)
    label = "Point-to-point traffic"
    return _matrix(label, "from \\ to", names, found.bytes, BINARY_UNITS)


def _matrix(
    label: str,
    corner: str,
    names: tuple[str, ...],
    cells: Sequence[Sequence[int | None]],
    units: Units,
) -> Matrix | None:
    most = max((value or 0 for row in cells for value in row), default=0)
    if len(names) < 3 or not most:
        return None
    scale, unit = next(one for one in units if most >= one[0])
    rows = tuple(tuple(_cell(value, scale, most) for value in row) for row in cells)
    return Matrix(label, corner, unit, names, rows)


def _cell(value: int | None, scale: float, most: int) -> Cell | None:
    if value is None:
        return None
    number = value / scale
    text = f"{number:.1f}" if number < 10 else f"{number:.0f}"
    return Cell(text if value else "", value / most)
