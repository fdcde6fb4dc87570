"""Process groups in which a thread beside the training communicates, and the training as well."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsprof.analysis.rank.last_moments import to_the_end
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.rank_trace import RankTrace


@dataclass(frozen=True, slots=True)
class SharedGroups(Aggregate):
    """In how many ranks threads share a group, by its label; no rank: not there.

    Nothing orders the collectives of two threads, so ranks may call them in different orders.
    """

    rows: dict[str, int]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> SharedGroups:
        """Look for groups that both use, on one rank."""
        trace = to_the_end(trace)
        table = trace.collectives
        both = np.intersect1d(
            table.group[table.is_background & table.on_wire],
            table.group[~table.is_background & table.on_wire],
        )
        found = (trace.groups.get(int(number)) for number in both)
        return cls({group.label: 1 for group in found if group is not None})


AGGREGATE = SharedGroups
