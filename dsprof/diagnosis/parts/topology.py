"""Where ranks are, in which groups, and who sends to whom."""

from __future__ import annotations

import msgspec


class PeerTraffic(msgspec.Struct):
    """Point-to-point traffic from ranks (rows) to ranks (columns), of a step.

    Beyond 32 ranks rows are hosts, or the busiest ranks and the others together.
    """

    names: list[str] = []
    bytes: list[list[int | None]] = []  # null where a size is not known
    calls: list[list[float]] = []
    waited_ns: list[list[int | None]] = []  # by the receiver; null where that was not measured

    def __post_init__(self) -> None:
        """Refuse a matrix that no renderer could show: one may come from a file.

        Raises:
            ValueError: it has not one cell for each pair of names.
        """
        for cells in (self.bytes, self.calls, self.waited_ns):
            if [len(row) for row in cells] != [len(self.names)] * len(self.names):
                raise ValueError("the matrix of transfers has not one cell for each pair of names")


class GroupLayout(msgspec.Struct):
    """Comparable process groups, of which a rank is in one at most."""

    name: str
    size: int  # ranks of the largest
    groups: int
    hosts: int | None  # that the ranks of one group are on, at most; null if some are unknown
    group_of: list[int]  # of each rank of the topology; -1: in none
    bytes_per_step: float | None  # of one rank; null where a size is not known
    exposed_ns: float | None  # of one rank's step


class Topology(msgspec.Struct):
    """Which ranks are on which host and in which groups; of up to 64 ranks."""

    ranks: list[int] = []
    hosts: list[str] = []  # of each rank, "" where unknown
    layouts: list[GroupLayout] = []  # the largest groups first
    left_out_ranks: int = 0
    within_hosts: str = ""  # link, where it is known
    between_hosts: str = ""

    def __post_init__(self) -> None:
        """Refuse what no renderer could show: one may come from a file.

        Raises:
            ValueError: a list has not one element for each rank.
        """
        sizes = {len(self.hosts), *(len(layout.group_of) for layout in self.layouts)}
        if sizes != {len(self.ranks)}:
            raise ValueError("the topology has not one host and group for each rank")
