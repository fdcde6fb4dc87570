"""Dumps that a start of the job before the last one has left, beside those of the last one.

torch names a dump after its rank only: a rank that dies without one keeps that of the start before.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsprof.analysis.aggregates.flight_recorders import DumpedRank, FlightRecorders

_LEAST_COMPLETED = 10
"""So many collectives are not all enqueued before the first of them can begin."""


def of_earlier_starts(flights: FlightRecorders) -> dict[int, int]:
    """Return the ranks whose dumps are of an earlier start, each with a rank that came after it.

    Such a rank has completed collectives of a group before another one called its first there.
    """
    return {
        rank: later
        for rank, dump in flights.ranks.items()
        for name, view in dump.groups.items()
        if view.completed >= _LEAST_COMPLETED
        for later in _began_later(flights, name, dump)
    }


def _began_later(flights: FlightRecorders, name: str, dump: DumpedRank) -> Iterator[int]:
    for rank in dump.members[name]:
        other = flights.ranks.get(rank)
        if other is not None and other.began_ns.get(name, 0) > dump.last_ns:
            yield rank
            return
