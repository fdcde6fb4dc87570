"""Finds dumps that an earlier start of the job left beside those of the last one.

torch names a dump only by its rank: a rank that dies without one leaves that of an earlier start.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsprof.analysis.aggregates.flight_recorders import DumpedRank, FlightRecorders

_LEAST_COMPLETED = 10
"""A rank cannot enqueue so many collectives before the first of them begins on all ranks."""


def of_earlier_starts(flights: FlightRecorders) -> dict[int, int]:
    """Return the ranks whose dumps are of an earlier start, each with a rank of a later one.

    Such a rank has completed collectives of a group before another rank called its first.
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
