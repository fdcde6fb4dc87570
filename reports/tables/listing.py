"""Lists things of one kind as a table: each column has a heading and what it shows of a thing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dsprof.reports import formatting as fmt
from dsprof.rules.rule import Cell, Column, ColumnKind, Table

MAX_ROWS = 200
"""Rows of one table; a page with more is no longer read, and no longer light."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Shown(Generic[R]):
    """One column of a list of `R`."""

    label: str
    of: Callable[[R], Cell]
    kind: ColumnKind = "text"


def listing(caption: str, columns: Sequence[Shown[R]], things: Iterable[R]) -> Table:
    """Return a table with a row for each thing, MAX_ROWS at most."""
    kept = list(things)
    if len(kept) > MAX_ROWS:
        caption += f" ({fmt.count(len(kept) - MAX_ROWS)} more rows left out)"
    heads = tuple(Column(column.label, column.kind) for column in columns)
    rows = tuple(tuple(column.of(one) for column in columns) for one in kept[:MAX_ROWS])
    return Table(heads, rows, caption)


def pairs(caption: str, things: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and values."""
    named: tuple[Shown[tuple[str, str]], ...] = (
        Shown("Name", lambda pair: pair[0]),
        Shown("Value", lambda pair: pair[1]),
    )
    return listing(caption, named, things)
