"""Lists like things as a table: each column has a heading and what it shows of a thing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dsprof.diagnosis.model import Diagnosis
from dsprof.findings import formatting as fmt
from dsprof.findings.finding import Cell, Column, ColumnKind, Table

MAX_ROWS = 200
"""Rows of one table; a page with more is no longer read, and no longer light."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Shown(Generic[R]):
    """One column of a list of `R`."""

    label: str
    of: Callable[[R], Cell]
    kind: ColumnKind = "text"


@dataclass(frozen=True, slots=True)
class Section(Generic[R]):
    """A part of the page that is one table; assign several to `SECTIONS` to have them found."""

    id: str
    title: str
    lead: str
    rows: Callable[[Diagnosis], Sequence[R]]  # no section without any
    table: Callable[[Sequence[R]], Table]
    nav: str = ""  # "": as the title
    bars: tuple[str, ...] = ()  # columns whose numbers are bars, too
    order: int = 0  # the lower comes first


def told(columns: Sequence[Shown[R]], things: Sequence[R]) -> list[Shown[R]]:
    """Return the columns that say anything of any of these things."""
    return [column for column in columns if any(column.of(one) is not None for one in things)]


def listing(caption: str, columns: Sequence[Shown[R]], things: Iterable[R]) -> Table:
    """Return a table with a row for each thing, MAX_ROWS at most."""
    heads = tuple(Column(column.label, column.kind) for column in columns)
    rows = tuple(tuple(column.of(one) for column in columns) for one in things)
    return bounded(Table(heads, rows, caption))


def bounded(table: Table) -> Table:
    """Return a table with MAX_ROWS at most, which says how many it left out."""
    left = len(table.rows) - MAX_ROWS
    if left <= 0:
        return table
    caption = f"{table.caption} ({fmt.plural(left, 'more row')} left out)".lstrip()
    return Table(table.columns, table.rows[:MAX_ROWS], caption)


def pairs(caption: str, things: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and values."""
    named: tuple[Shown[tuple[str, str]], ...] = (
        Shown("Name", lambda pair: pair[0]),
        Shown("Value", lambda pair: pair[1]),
    )
    return listing(caption, named, things)
