"""How long forward, backward and step last, and what of it is communication."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsprof.analysis.steps import detailed_steps, in_steps, is_timed
from dsprof.analysis.summary import Aggregate, RankClock, add_rows
from dsprof.analysis.timeline import Intervals, exposed
from dsprof.trace.table import RankTrace, Span


@dataclass(frozen=True, slots=True)
class PhaseSums:
    """Sums over ranks and measured steps, on the host's clock."""

    spans: int
    rank_steps: int  # measured steps, summed over the ranks that had such a phase
    duration_ns: int  # union over threads and engines
    exposed_ns: int  # of it, waits for communication

    def __add__(self, other: PhaseSums) -> PhaseSums:
        return PhaseSums(
            self.spans + other.spans,
            self.rank_steps + other.rank_steps,
            self.duration_ns + other.duration_ns,
            self.exposed_ns + other.exposed_ns,
        )

    @property
    def busy_ms_per_step(self) -> float:
        """Time of a step in this phase in which nothing was waited for."""
        return (self.duration_ns - self.exposed_ns) / max(self.rank_steps, 1) / 1e6


@dataclass(frozen=True, slots=True)
class Phases(Aggregate):
    """Sums by phase ("forward", "backward", "step").

    Of ranks on a device that is timed, the phases are those of the host, and waits of its streams
    are not in them.
    """

    rows: dict[str, PhaseSums]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Phases:
        """Measure the phases of one rank."""
        steps = detailed_steps(trace)
        spans = [span for span in trace.spans if not span.is_annotation]
        numbers = np.fromiter((span.step for span in spans), np.int64, len(spans))
        named: dict[str, list[Span]] = {}
        for index in np.flatnonzero(in_steps(numbers, steps)):
            named.setdefault(spans[index].name, []).append(spans[index])
        on_host = is_timed(trace) and not trace.is_device_timed
        waits = exposed(trace) if on_host else Intervals.union(numbers[:0], numbers[:0])
        return cls({name: _sums(chosen, waits, len(steps)) for name, chosen in named.items()})

    def merge(self, other: Phases) -> Phases:
        """Add up the same phases."""
        return Phases(add_rows(self.rows, other.rows))


def _sums(spans: list[Span], waits: Intervals, steps: int) -> PhaseSums:
    starts = np.fromiter((span.start_ns for span in spans), np.int64, len(spans))
    ends = np.fromiter((span.end_ns for span in spans), np.int64, len(spans))
    whole = Intervals.union(starts, ends)
    return PhaseSums(len(spans), steps, whole.length_ns, (whole & waits).length_ns)
