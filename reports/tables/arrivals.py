"""Last arrivals to collectives."""

from __future__ import annotations

from dsprof.diagnosis.model import ArrivalInfo, ArrivalRow
from dsprof.findings.finding import Table
from dsprof.reports.tables.listing import Shown, listing

_ARRIVAL: tuple[Shown[ArrivalRow], ...] = (
    Shown("rank", lambda row: str(row.rank)),
    Shown("last to arrive", lambda row: row.last, "count"),
    Shown("of collectives", lambda row: row.collectives, "count"),
    Shown("others waited for it, per step", lambda row: row.caused_ns, "ns"),
    Shown("it waited for others, per step", lambda row: row.waited_ns, "ns"),
    Shown("transfer, per step", lambda row: row.transfer_ns, "ns"),
)


def last_arrivals(arrivals: ArrivalInfo) -> Table:
    """Last arrivals, how often and by how much."""
    return listing("Last arrivals in measured steps", _ARRIVAL, arrivals.rows)
