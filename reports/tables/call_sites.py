"""Which lines of the program wait for communication."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from dsprof.diagnosis.parts.communication import CallSiteRow
from dsprof.findings.finding import Table
from dsprof.reports.tables.listing import Shown, listing


class _Site(NamedTuple):
    """A line and what it issues; figures of one rank's step."""

    site: str
    phases: tuple[str, ...]
    ops: tuple[str, ...]
    calls: float
    exposed_ns: float | None


_SITE: tuple[Shown[_Site], ...] = (
    Shown("Called from", lambda one: one.site),
    Shown("Phases", lambda one: ", ".join(one.phases)),
    Shown("Operations", lambda one: ", ".join(one.ops)),
    Shown("Calls", lambda one: one.calls, "count"),
    Shown("Exposed", lambda one: one.exposed_ns, "ns"),
)


def call_sites(rows: Iterable[CallSiteRow]) -> Table:
    """Lines by exposed time."""
    alike: dict[str, list[CallSiteRow]] = defaultdict(list)
    for row in rows:
        if row.site:
            alike[row.site].append(row)
    sites = sorted(map(_summed, alike, alike.values()), key=lambda one: -(one.exposed_ns or 0))
    return listing("Lines of the program, per rank and step", _SITE, sites)


def _summed(site: str, rows: list[CallSiteRow]) -> _Site:
    known = [row.exposed_ns for row in rows if row.exposed_ns is not None]
    return _Site(
        site,
        tuple(dict.fromkeys(row.phase for row in rows if row.phase)),
        tuple(dict.fromkeys(row.op for row in rows)),
        sum(row.calls_per_step for row in rows),
        sum(known) if known else None,
    )
