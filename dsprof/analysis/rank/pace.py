"""Where in a step a rank loses time, where neither forward nor kernels were recorded.

Marks are its collectives and, on the host clock, begin and end of its backward and optimizer step.
Waits are left out. A rank whose computation is slow is slow between marks, too; one that is held up
by input, or by what its host does between steps, comes late to the first and keeps pace with the
others from there on. With accumulated gradients it comes late to each backward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsprof.analysis.rank.intervals import Array, exposed
from dsprof.analysis.rank.record_columns import span_columns, step_columns
from dsprof.analysis.rank.steps import detailed_steps, is_timed, on_host_clock, places
from dsprof.trace.rank_trace import RankTrace

_LEAST_SHARE = 0.1
"""This share of a rank's own time must lie between marks to show how fast it works."""
_KEEPS_PACE = 0.2
"""A rank that is late at the first mark is not slow if it then grows by less than this share."""
_SLOW_ALIKE = 0.5


@dataclass(frozen=True, slots=True)
class Pace:
    """Mean of a measured step of one rank in ns, without waits; the parts make up the step."""

    before_ns: int  # from its begin until the first mark, and from a mark until a later backward
    between_ns: int  # from the first mark until the last one, that left out
    after_ns: int

    @property
    def working_ns(self) -> int:
        """What is not before."""
        return self.between_ns + self.after_ns


def pace(trace: RankTrace) -> Pace | None:
    """Return the pace of a rank; None where no measured step shows all."""
    steps, (numbers, times) = detailed_steps(trace), _marks(trace)
    place, known = places(numbers, steps)
    place, times = place[known], times[known]
    if not is_timed(trace) or not len(times):
        return None
    first = np.full(len(steps), np.iinfo(np.int64).max)
    last = np.full(len(steps), np.iinfo(np.int64).min)
    np.minimum.at(first, place, times)
    np.maximum.at(last, place, times)
    columns = step_columns(trace)
    rows = columns.rows_of(steps)
    begin, end = columns.start_ns[rows], columns.end_ns[rows]
    used = np.bincount(place, minlength=len(steps)) > 0
    begin, end = begin[used], end[used]
    first, last = np.clip(first[used], begin, end), np.clip(last[used], begin, end)
    waits = exposed(trace)
    parts = ((begin, first), (first, last), (last, end))
    before, between, after = (
        int(np.mean(stop - start - waits.within(start, stop))) for start, stop in parts
    )
    start, stop = _before_later_backwards(trace, steps, place, times)
    later = int((stop - start - waits.within(start, stop)).sum()) // len(begin)
    return Pace(before + later, between - later, after)


def _before_later_backwards(
    trace: RankTrace, steps: Array, place: Array, times: Array
) -> tuple[Array, Array]:
    """Return when the last mark before a backward was, and when that began, in the same step."""
    spans, order = span_columns(trace), np.argsort(times, kind="stable")
    step, known = places(spans.step, steps)
    known &= spans.named("backward") & ~spans.is_annotation & on_host_clock(trace)
    begins = spans.start_ns[known].astype(np.int64)
    mark = np.searchsorted(times[order], begins) - 1
    some = (mark >= 0) & (place[order][mark] == step[known])
    return times[order][mark[some]].astype(np.int64), begins[some]


def _marks(trace: RankTrace) -> tuple[Array, Array]:
    """Return steps and times of the marks; phases are the host's, and say nothing of a device."""
    rows = trace.collectives
    issued = rows.on_wire & ~rows.is_untimed & ~rows.is_open
    spans = span_columns(trace)
    is_mark = ~spans.is_annotation & on_host_clock(trace)
    numbers, begun, ended = (one[is_mark] for one in (spans.step, spans.start_ns, spans.end_ns))
    return (
        np.concatenate([rows.step[issued], numbers, numbers]),
        np.concatenate([rows.issue_ns[issued], begun, ended]),
    )


def others_pace(paces: Mapping[int, Pace | None], others: Sequence[int]) -> Pace | None:
    """Return the median of some ranks, part by part; None where one of them has none."""
    known = [found for rank in others if (found := paces.get(rank)) is not None]
    if not known or len(known) < len(others):
        return None
    columns = zip(*((one.before_ns, one.between_ns, one.after_ns) for one in known), strict=True)
    return Pace(*(int(np.median(column)) for column in columns))


def is_slow(mine: Pace, usual: Pace, least_ns: float) -> bool | None:
    """Say whether a rank works slower (True) or is held up before it begins (False).

    None: neither explains `least_ns` of a step, or the times do not tell.
    """
    later, longer = mine.before_ns - usual.before_ns, mine.working_ns - usual.working_ns
    if longer >= least_ns:
        return True
    # What follows the last mark may be the optimizer, which a longer batch does not slow.
    is_shown = usual.between_ns >= _LEAST_SHARE * (usual.before_ns + usual.working_ns)
    if later + longer < least_ns or not is_shown or not usual.between_ns:
        return None
    growth = mine.before_ns / max(usual.before_ns, 1) - 1
    behind = mine.between_ns / usual.between_ns - 1
    if behind >= _SLOW_ALIKE * growth:
        return True
    return False if later >= least_ns and behind <= _KEEPS_PACE * growth else None
