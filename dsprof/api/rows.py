"""Rows of one type: iterated, or converted to a table of pandas or polars.

A part is what one rank has, as columns: no more than one is in memory while rows are iterated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from html import escape
from importlib import import_module
from itertools import islice
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_type_hints, overload

import msgspec

from dsprof.errors import DsprofError
from dsprof.files.json_documents import json_line

R = TypeVar("R", bound=msgspec.Struct)

Columns = Mapping[str, Sequence[Any]]
"""Values by the names of the fields of a row; all of one length."""

_SHOWN = 5
_SHOWN_AS_TABLE = 10


class Rows(Sequence[R], Generic[R]):
    """Rows of type `kind`, read when they are used: also for each `rows[5]`, so iterate."""

    def __init__(self, kind: type[R], parts: Callable[[], Iterable[Columns]]) -> None:
        self.kind = kind
        self.parts = parts

    @classmethod
    def of(cls, kind: type[R], rows: Callable[[], Iterable[R]]) -> Rows[R]:
        """Make rows of what is in memory already."""

        def parts() -> Iterator[Columns]:
            found = list(rows())
            yield {name: [getattr(row, name) for row in found] for name in kind.__struct_fields__}

        return cls(kind, parts)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the fields of a row."""
        return self.kind.__struct_fields__

    @cached_property
    def plain_types(self) -> dict[str, type]:
        """The type of each column in a table: bool, int, float, or str, which may be JSON."""
        hints = get_type_hints(self.kind)
        return {name: _plain_type(hints[name]) for name in self.columns}

    def plain_parts(self) -> Iterator[dict[str, list[Any]]]:
        """Yield the parts with plain values only; what is nested is JSON text."""
        for part in self.parts():
            yield {name: [_plain(value) for value in part[name]] for name in self.columns}

    def __iter__(self) -> Iterator[R]:
        for part in self.parts():
            for values in zip(*(part[name] for name in self.columns), strict=True):
                yield self.kind(**dict(zip(self.columns, values, strict=True)))

    @cached_property
    def _count(self) -> int:
        return sum(len(part[self.columns[0]]) for part in self.parts())

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> R: ...
    @overload
    def __getitem__(self, place: slice) -> list[R]: ...
    def __getitem__(self, place: int | slice) -> R | list[R]:
        if isinstance(place, slice):
            return self._listed()[place]
        index = place + len(self) if place < 0 else place
        for row in islice(self, max(index, 0), None) if index >= 0 else ():
            return row
        raise IndexError(f"row {place} of {len(self)}")

    def __reversed__(self) -> Iterator[R]:
        return reversed(self._listed())

    def index(self, value: Any, start: int = 0, stop: int = sys.maxsize) -> int:
        """Return the place of the first row that is equal to `value`.

        Raises:
            ValueError: there is none.
        """
        return self._listed().index(value, start, stop)

    def _listed(self) -> list[R]:
        return list(iter(self))  # without `iter` it would ask for the length, which reads, too

    def __repr__(self) -> str:
        first = list(islice(self, _SHOWN + 1))
        lines = [f"rows of {self.kind.__name__}: {', '.join(self.columns)}"]
        lines += (f"  {_cut(repr(row))}" for row in first[:_SHOWN])
        return "\n".join(lines + ["  ..."] * (len(first) > _SHOWN))

    def _repr_html_(self) -> str:
        first = list(islice(self, _SHOWN_AS_TABLE))
        head = "".join(f"<th>{name}</th>" for name in self.columns)
        caption = f"{self.kind.__name__}: the first {len(first)} rows"
        body = "".join(map(_table_row, first))
        return f"<table><caption>{caption}</caption><tr>{head}</tr>{body}</table>"

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame`; integers that may be unknown have its type Int64.

        Raises:
            DsprofError: pandas is not installed.
        """
        pandas = installed("pandas")
        names = {bool: "boolean", int: "Int64", float: "Float64", str: "string"}
        columns = self._whole()
        return pandas.DataFrame(
            {
                name: pandas.array(columns[name], dtype=names[kind])
                for name, kind in self.plain_types.items()
            }
        )

    def to_polars(self) -> Any:
        """Return a `polars.DataFrame`.

        Raises:
            DsprofError: polars is not installed.
        """
        polars = installed("polars")
        names = {bool: polars.Boolean, int: polars.Int64, float: polars.Float64, str: polars.String}
        schema = {name: names[kind] for name, kind in self.plain_types.items()}
        return polars.DataFrame(self._whole(), schema=schema)

    def _whole(self) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = {name: [] for name in self.columns}
        for part in self.plain_parts():
            for name, values in part.items():
                columns[name] += values
        return columns


def _plain_type(hint: Any) -> type:
    kinds = set(get_args(hint) or (hint,)) - {NoneType}
    kind = kinds.pop() if len(kinds) == 1 else str
    return kind if kind in (bool, int, float) else str


def _plain(value: Any) -> bool | int | float | str | None:
    if isinstance(value, Enum):
        return str(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return json_line(value).decode()


def _table_row(row: msgspec.Struct) -> str:
    values = (getattr(row, name) for name in row.__struct_fields__)
    texts = ("" if value is None else _cut(str(_plain(value))) for value in values)
    return f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in texts)}</tr>"


def _cut(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."


def installed(module: str) -> Any:
    """Import a module of a package that users may not have.

    Raises:
        DsprofError: it is not installed.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ImportError:
        raise DsprofError(f"{package} is not installed; run: pip install {package}") from None
