"""Tables of facts that are files of dsprof: CSV with a head line, and lists of names."""

from __future__ import annotations

import csv
from functools import cache
from pkgutil import get_data


def rows(table: str) -> list[dict[str, str]]:
    """Return the rows of a file of dsprof, such as "rules/knowledge/links.csv"."""
    return list(csv.DictReader(lines(table), restval=""))


@cache
def lines(table: str) -> tuple[str, ...]:
    """Return the lines of a file of dsprof."""
    data = get_data("dsprof", table)
    assert data is not None
    return tuple(data.decode().splitlines())
