"""Copies between host and device in measured steps: what offloading costs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dsprof.analysis.rank.steps import detailed_steps
from dsprof.analysis.summary import Aggregate, RankClock, Sums, summed
from dsprof.trace.rank_trace import RankTrace


@dataclass(frozen=True, slots=True)
class CopySums(Sums):
    """Sums over ranks and measured steps."""

    calls: int
    rank_steps: int  # measured steps, summed over the ranks that had such a copy
    nbytes: int
    duration_ns: int


@dataclass(frozen=True, slots=True)
class Copies(Aggregate):
    """Sums by what is copied ("gradient"), the direction ("to host") and the phase."""

    rows: dict[tuple[str, str, str], CopySums]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Copies:
        steps = detailed_steps(trace)
        wanted = set(steps.tolist())
        rows = summed(
            (
                (copy.what, copy.direction, copy.phase),
                CopySums(1, 0, copy.nbytes, copy.end_ns - copy.start_ns),
            )
            for copy in trace.copies
            if copy.step in wanted
        )
        return cls({kind: replace(row, rank_steps=len(steps)) for kind, row in rows.items()})
