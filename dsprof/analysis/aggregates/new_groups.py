"""Process groups that are used for the first time in measured steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsprof.analysis.rank.steps import detailed_steps, in_steps
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.rank_trace import RankTrace


@dataclass(frozen=True, slots=True)
class NewGroups(Aggregate):
    """Sums over ranks and measured steps in full detail."""

    groups: int  # of two ranks or more, first used in these steps
    steps: int  # in which there is one
    rank_steps: int

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> NewGroups:
        """Find the first collective of each group."""
        rows, steps = trace.collectives, detailed_steps(trace)
        joint = [number for number, group in trace.groups.items() if group.size > 1]
        # Sends and receives are numbered for each peer, not for the group.
        first = (rows.seq == 1) & (rows.peer < 0) & rows.on_wire & np.isin(rows.group, joint)
        numbers = rows.step[first & in_steps(rows.step, steps)]
        return cls(len(numbers), len(np.unique(numbers)), len(steps))
