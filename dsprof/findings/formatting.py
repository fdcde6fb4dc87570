"""Numbers as words: every renderer says the same figure in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable

from dsprof.findings import wording
from dsprof.findings.finding import Cell, ColumnKind
from dsprof.findings.wording import (
    BINARY_UNITS,
    RATE_UNITS,
    TIME_UNITS,
    Units,
    percent,
    scaled,
    shortened,
)

NOT_MEASURABLE = "not measurable"
UNKNOWN = "unknown"
LONGEST_TEXT = 1000  # in a cell: paths are long, a value of 100,000 characters hides the rest
NOTHING = "\N{EN DASH}"
NO_BREAK = "\N{NO-BREAK SPACE}"

plural, ranks, named_ranks = wording.plural, wording.listed, wording.named

_COUNTED = ("count", "bytes")  # recorded or not; times and rates are measured

_BEFORE_UNITS = re.compile(r"(?<=\d) (?=(?:%|[nµm]?s|(?:[kMG]|[KMGT]i)?B(?:/s)?)(?![\w/]))")


def duration(ns: float | None) -> str:
    """Nanoseconds in the unit that keeps about three figures."""
    return _measured(ns, TIME_UNITS)


def one_unit(first: str, mark: str, second: str) -> str:
    """Join two figures, with the unit once where both have the same: `258 → 194 ms`."""
    number, _, unit = first.rpartition(" ")
    return f"{number if second.endswith(f' {unit}') else first}{mark}{second}"


def size(n_bytes: float | None) -> str:
    """Bytes in binary units, as memory and buckets are counted."""
    return UNKNOWN if n_bytes is None else scaled(n_bytes, BINARY_UNITS)


def rate(bytes_per_s: float | None) -> str:
    """Bytes per second in decimal units, as nccl-tests and links are rated."""
    return _measured(bytes_per_s, RATE_UNITS)


def share(part: float | None) -> str:
    """A part of one, as per cent."""
    return NOT_MEASURABLE if part is None else percent(part)


def count(number: float | None) -> str:
    """How many: whole numbers in full, others with about three figures."""
    return UNKNOWN if number is None else wording.count(number)


def unbroken(text: str) -> str:
    """Keep each number on one line with its unit: `15 %`, `1.50 MiB`."""
    return _BEFORE_UNITS.sub(NO_BREAK, text)


def cell(value: Cell, kind: ColumnKind) -> str:
    """A table cell as its column's kind asks; what is null says so."""
    if value is None:
        return NOTHING if kind == "text" else UNKNOWN if kind in _COUNTED else NOT_MEASURABLE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return shortened(value, LONGEST_TEXT)
    return _NUMBERS[kind](value)


def _measured(value: float | None, units: Units) -> str:
    return NOT_MEASURABLE if value is None else scaled(value, units)


_NUMBERS: dict[ColumnKind, Callable[[float], str]] = {
    "text": str,
    "count": count,
    "bytes": size,
    "ns": duration,
    "ms": lambda value: duration(value * 1e6),
    "long_ns": wording.long_duration,
    "share": share,
    "rate": rate,
}
