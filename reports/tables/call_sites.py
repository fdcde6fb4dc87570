"""Which lines of the program wait for communication."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from dsprof.diagnosis.model import CommunicationRow
from dsprof.findings.finding import Table
from dsprof.reports.tables.communication import per_step
from dsprof.reports.tables.listing import Shown, listing


class _Site(NamedTuple):
    """A line, with the collectives that it most often issues; figures of one rank's step."""

    site: str
    ops: tuple[str, ...]
    calls: float
    exposed_ns: float | None


_SITE: tuple[Shown[_Site], ...] = (
    Shown("Called from", lambda one: one.site),
    Shown("Operations", lambda one: ", ".join(one.ops)),
    Shown("Calls", lambda one: one.calls, "count"),
    Shown("Exposed", lambda one: one.exposed_ns, "ns"),
)


def call_sites(rows: Iterable[CommunicationRow]) -> Table:
    """Lines by exposed time; each kind of collective counts for the line that issues it most."""
    alike: dict[str, list[CommunicationRow]] = defaultdict(list)
    for row in rows:
        if row.site:
            alike[row.site].append(row)
    sites = sorted(map(_summed, alike, alike.values()), key=lambda one: -(one.exposed_ns or 0))
    return listing("Per rank and step, on average", _SITE, sites)


def _summed(site: str, rows: list[CommunicationRow]) -> _Site:
    exposed = [per_step(row, row.exposed_ns) for row in rows]
    known = [ns for ns in exposed if ns is not None]
    return _Site(
        site,
        tuple(dict.fromkeys(row.op for row in rows)),
        sum(row.calls_per_step for row in rows),
        sum(known) if known else None,
    )
