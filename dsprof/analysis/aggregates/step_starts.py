"""When each step began, by the wall clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsprof.analysis.rank.record_columns import step_columns
from dsprof.analysis.rank.sampling import kept_steps
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.columns import IntArray
from dsprof.trace.rank_trace import RankTrace

_NS = 1_000_000_000


@dataclass(frozen=True)
class StepStarts(Aggregate):
    """The kept steps, ascending, and when the first rank began each, in s since 1970."""

    number: IntArray
    began_s: IntArray

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> StepStarts:
        """Read the steps of one rank; of a file that does not say when it was made, none."""
        started_ns = trace.header.started_epoch_ns
        number = kept_steps(trace) if started_ns else np.zeros(0, np.int64)
        steps = step_columns(trace)
        begin_ns = steps.start_ns[steps.rows_of(number)] if len(number) else number
        return cls(number, started_ns // _NS + (begin_ns + started_ns % _NS) // _NS)

    def merge(self, other: StepStarts) -> StepStarts:
        """Join the steps; of those of both, the earlier start stays."""
        if np.array_equal(self.number, other.number):
            return StepStarts(self.number, np.minimum(self.began_s, other.began_s))
        number = np.union1d(self.number, other.number)
        began_s = np.full(len(number), np.iinfo(np.int64).max)
        for one in (self, other):
            place = np.searchsorted(number, one.number)
            began_s[place] = np.minimum(began_s[place], one.began_s)
        return StepStarts(number, began_s)
