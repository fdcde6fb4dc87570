"""How long phases and annotated spans last, and what of it is communication."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dsprof.analysis.rank import intervals
from dsprof.analysis.rank.intervals import Array, Intervals, exposed
from dsprof.analysis.rank.record_columns import SpanColumns, span_columns
from dsprof.analysis.rank.sampling import share_of
from dsprof.analysis.rank.steps import detailed_steps, in_steps, is_timed
from dsprof.analysis.summary import Aggregate, RankClock, Sums
from dsprof.trace.columns import BoolArray
from dsprof.trace.rank_trace import RankTrace

NAMES = 100
_NAMES_OF_ALL, _LEAST_NAMES = 1 << 17, 8  # kept of all ranks together, and of each at least
OTHERS = "(others)"
"""All annotations after the first NAMES of a rank: a program may give each span its own name."""


@dataclass(frozen=True, slots=True)
class PhaseSums(Sums):
    """Sums over ranks and measured steps, on the host's clock."""

    spans: int
    rank_steps: int  # measured steps, summed over the ranks that had such a span
    duration_ns: int  # union over threads and engines
    exposed_ns: int  # of it, waits for communication
    outside_ns: int  # of it, in no phase, wait or copy
    ranks: int = 1  # that had such a span
    longer_ns: int = 0  # how much steps exceed the median of their rank, in all

    @property
    def busy_ms_per_step(self) -> float:
        """Time of a step in this phase in which nothing was waited for."""
        return (self.duration_ns - self.exposed_ns) / self.rank_steps / 1e6

    @property
    def ns_per_step(self) -> float:
        """Time of a rank's step in it."""
        return self.duration_ns / self.rank_steps


@dataclass(frozen=True, slots=True)
class Phases(Aggregate):
    """Sums by phase ("forward", "backward", "step"), and by name and rank of what was annotated.

    Of ranks on a device that is timed, the phases are those of the host, and waits of its streams
    are not in them.
    """

    rows: dict[str, PhaseSums]
    annotated: dict[str, dict[int, PhaseSums]]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Phases:
        steps = detailed_steps(trace)
        spans = span_columns(trace)
        is_measured = in_steps(spans.step, steps)
        most = share_of(trace, _NAMES_OF_ALL, _LEAST_NAMES, NAMES)
        phases = _by_name(spans, is_measured & ~spans.is_annotation)
        annotated = _by_name(spans, is_measured & spans.is_annotation, most)
        on_host = is_timed(trace) and not trace.is_device_timed
        waits = exposed(trace) if on_host else Intervals.union(steps[:0], steps[:0])
        elsewhere = waits | intervals.phases(trace) | intervals.copies(trace)
        named = {
            name: {trace.rank: _sums(spans, mine, waits, elsewhere, len(steps))}
            for name, mine in annotated.items()
        }
        rows = {
            name: _sums(spans, mine, waits, elsewhere, len(steps)) for name, mine in phases.items()
        }
        return cls(rows, named)

    def of_all_ranks(self, name: str) -> PhaseSums:
        """Add up what was annotated by a name."""
        first, *others = self.annotated[name].values()
        return sum(others, first)


def _by_name(spans: SpanColumns, chosen: BoolArray, most: int | None = None) -> dict[str, Array]:
    """Return the places of chosen spans by name; all names after the first `most` are one."""
    places = np.flatnonzero(chosen)
    codes, first, counts = np.unique(spans.name[places], return_index=True, return_counts=True)
    by_code = np.split(places[np.argsort(spans.name[places], kind="stable")], np.cumsum(counts))
    order = np.argsort(first)
    names = [spans.names[codes[one]] for one in order]
    groups = [by_code[one] for one in order]
    found = dict(zip(names[:most], groups[:most], strict=True))
    if rest := groups[len(found) :]:
        found[OTHERS] = np.concatenate([*rest, found.get(OTHERS, places[:0])])
    return found


def _sums(
    spans: SpanColumns, mine: Array, waits: Intervals, elsewhere: Intervals, steps: int
) -> PhaseSums:
    whole = Intervals.union(spans.start_ns[mine], spans.end_ns[mine])
    outside_ns = (whole - elsewhere).length_ns
    return PhaseSums(
        len(mine),
        steps,
        whole.length_ns,
        (whole & waits).length_ns,
        outside_ns,
        longer_ns=_longer_ns(spans, mine),
    )


def _longer_ns(spans: SpanColumns, mine: Array) -> int:
    step, place = np.unique(spans.step[mine], return_inverse=True)
    took_ns = np.zeros(len(step), np.int64)
    np.add.at(took_ns, place, spans.end_ns[mine] - spans.start_ns[mine])
    return int(np.maximum(took_ns - np.median(took_ns).astype(np.int64), 0).sum())
