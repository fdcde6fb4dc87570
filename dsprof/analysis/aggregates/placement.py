"""Which groups sent what, and who is in them: with the hosts of ranks, what crosses nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dsprof.analysis.aggregates.traffic import PURPOSES, Purpose, purposes
from dsprof.analysis.rank.blocked_time import BlockedTime, blocked_rows
from dsprof.analysis.rank.steps import detailed_steps, in_steps
from dsprof.analysis.summary import Aggregate, RankClock, greatest, joined_by
from dsprof.trace.rank_trace import RankTrace


class Place(NamedTuple):
    """A process group."""

    role: str  # first: who knows it tells more
    label: str
    ranks: tuple[int, ...]

    def hosts(self, host_of: Mapping[int, str]) -> Counter[str]:
        """Return how many of its ranks are on each host, of those whose host is known."""
        return Counter(host_of[rank] for rank in self.ranks if rank in host_of)


class GroupUse(NamedTuple):
    """Collectives of one row have this in common."""

    group: str  # key of the group
    purpose: Purpose
    phase: str


@dataclass(frozen=True, slots=True)
class Placement(Aggregate):
    """Groups of two or more ranks by key, and sums of measured steps in full detail."""

    # a rank may know no role of a group
    groups: dict[str, Place] = field(metadata=joined_by(greatest))
    rows: dict[GroupUse, BlockedTime]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Placement:
        table, steps = trace.collectives, detailed_steps(trace)
        known = {n: group for n, group in trace.groups.items() if len(group.ranks) > 1}
        mine = in_steps(table.step, steps) & table.on_wire & np.isin(table.group, list(known))
        purpose = purposes(trace)

        def use_of(row: int) -> GroupUse:
            key = known[int(table.group[row])].key
            return GroupUse(key, PURPOSES[purpose[row]], table.words[table.phase[row]])

        columns = [purpose, table.group, table.phase]
        rows = blocked_rows(trace, np.flatnonzero(mine), columns, len(steps), use_of)
        places = {g.key: Place(g.role, g.label, tuple(g.ranks)) for g in known.values()}
        return cls(places, rows)
