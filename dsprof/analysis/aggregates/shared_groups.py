"""Process groups in which several threads of a rank communicate, in no order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsprof.analysis.rank.intervals import blocked
from dsprof.analysis.rank.last_moments import to_the_end
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.rank_trace import Collectives, RankTrace


@dataclass(frozen=True, slots=True)
class SharedGroups(Aggregate):
    """In how many ranks threads share a group, by its label; no rank: not there.

    A thread beside the training and the training do, and threads that are in synchronous calls of
    it at once. Nothing orders their collectives, so ranks may call them in different orders.
    """

    rows: dict[str, int]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> SharedGroups:
        trace = to_the_end(trace)
        table = trace.collectives
        both = np.intersect1d(
            table.group[table.is_background & table.on_wire],
            table.group[~table.is_background & table.on_wire],
        )
        found = (trace.groups.get(number) for number in {*both.tolist(), *_called_at_once(table)})
        return cls({group.label: 1 for group in found if group is not None})


def _called_at_once(rows: Collectives) -> list[int]:
    """Return the groups in which a thread called while another one was still in its call."""
    calls = np.flatnonzero(rows.on_wire & ~rows.is_async & (rows.thread > 0))
    if not (rows.thread[calls] != rows.thread[calls][:1]).any():
        return []
    calls = calls[np.lexsort((rows.issue_ns[calls], rows.group[calls]))]
    group, thread, begin = rows.group[calls], rows.thread[calls], rows.issue_ns[calls]
    has_ended = ~rows.is_open[calls][:-1] & (blocked(rows)[1][calls][:-1] <= begin[1:])
    at_once = (group[1:] == group[:-1]) & (thread[1:] != thread[:-1]) & ~has_ended
    return [*np.unique(group[1:][at_once]).tolist()]
