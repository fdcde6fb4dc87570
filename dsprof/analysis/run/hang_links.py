"""Which ranks a network does not connect any more, by what their connections hold back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from dsprof.analysis.aggregates.endings import Symptoms

Link = tuple[int, int]


def broken_links(looks: Mapping[int, Symptoms]) -> tuple[Link, ...]:
    """Return the pairs of ranks between which bytes stay unsent, though nothing is left unread."""
    return tuple(sorted(set(_broken(looks))))


def _broken(looks: Mapping[int, Symptoms]) -> Iterator[Link]:
    ends = {
        (end.port, end.peer_port): (rank, end)
        for rank, look in looks.items()
        for end in look.connections
    }
    for (port, peer_port), (rank, end) in ends.items():
        other = ends.get((peer_port, port))
        if other and end.unsent_bytes and not other[1].unread_bytes and other[0] != rank:
            yield min(rank, other[0]), max(rank, other[0])


def cut_off(links: tuple[Link, ...]) -> tuple[int, ...]:
    """Return the ranks at an end of the most links."""
    count = Counter(rank for link in links for rank in link)
    most = max(count.values(), default=0)
    return tuple(sorted(rank for rank, links_of in count.items() if links_of == most))
