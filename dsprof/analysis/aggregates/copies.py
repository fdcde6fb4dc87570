"""Copies between host and device in measured steps: what offloading costs."""

from __future__ import annotations

from dataclasses import dataclass

from dsprof.analysis.rank.steps import detailed_steps
from dsprof.analysis.summary import Aggregate, RankClock, add_rows
from dsprof.trace.table import RankTrace


@dataclass(frozen=True, slots=True)
class CopySums:
    """Sums over ranks and measured steps."""

    calls: int
    rank_steps: int  # measured steps, summed over the ranks that had such a copy
    nbytes: int
    duration_ns: int

    def __add__(self, other: CopySums) -> CopySums:
        return CopySums(
            self.calls + other.calls,
            self.rank_steps + other.rank_steps,
            self.nbytes + other.nbytes,
            self.duration_ns + other.duration_ns,
        )


@dataclass(frozen=True, slots=True)
class Copies(Aggregate):
    """Sums by what is copied ("gradient"), the direction ("to host") and the phase."""

    rows: dict[tuple[str, str, str], CopySums]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Copies:
        """Group the copies of one rank."""
        steps = detailed_steps(trace)
        wanted = set(steps.tolist())
        rows: dict[tuple[str, str, str], CopySums] = {}
        for copy in trace.copies:
            if copy.step not in wanted:
                continue
            kind = (copy.what, copy.direction, copy.phase)
            taking_part = 0 if kind in rows else len(steps)
            one = CopySums(1, taking_part, copy.nbytes, copy.end_ns - copy.start_ns)
            rows[kind] = rows[kind] + one if kind in rows else one
        return cls(rows)

    def merge(self, other: Copies) -> Copies:
        """Add up rows of the same kind."""
        return Copies(add_rows(self.rows, other.rows))


AGGREGATE = Copies
