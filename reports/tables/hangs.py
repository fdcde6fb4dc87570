"""Who waits where in a run that is stuck or crashed."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from dsprof.analysis.hang.model import GroupWaits
from dsprof.findings import formatting as fmt
from dsprof.findings.finding import Table
from dsprof.findings.frames import shortened
from dsprof.findings.wording import named
from dsprof.reports.tables.listing import Shown, listing


def _call(row: GroupWaits) -> str:
    return "" if row.number is None else f"{row.op} {fmt.count(row.number)}"


def _named(ranks: Collection[int]) -> str:
    return named(ranks) if ranks else ""  # "1" below "Not joined" would read as a count


_WAITS: tuple[Shown[GroupWaits], ...] = (
    Shown("Group", lambda row: row.group),
    Shown("Call", _call),
    Shown("Size", lambda row: row.bytes, "bytes"),
    Shown("Waiting", lambda row: _named(row.waiting)),
    Shown("Not joined", lambda row: _named(row.absent)),
    Shown("Called something else", lambda row: _named(row.different)),
    Shown("Not finished", lambda row: _named(row.unfinished)),
    Shown("Unknown", lambda row: _named(row.unknown)),
    Shown("Waited", lambda row: row.waited_ns, "ns"),
    Shown("Called from", lambda row: shortened(row.called_from)),
)
_ALWAYS = {"Group", "Call", "Waiting"}


def waits(rows: Iterable[GroupWaits]) -> Table:
    """Process groups in which ranks wait; columns that say nothing are left out."""
    groups = list(rows)
    told = [c for c in _WAITS if c.label in _ALWAYS or any(c.of(row) for row in groups)]
    return listing("Who waits where, the earliest first", told, groups)
