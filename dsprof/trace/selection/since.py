"""From a time to the first step that is read, by the clock and the steps of one rank."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

from dsprof.errors import TraceError
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import LATE_STEPS, RollUp, StepIndex
from dsprof.trace.selection import OPEN_END, Since
from dsprof.trace.selection.step_cutting import read_index
from dsprof.trace.source import Source

Read = Callable[[range | None], RankTrace]
"""Reads some steps of a trace, or all."""


def first_step_since(path: Path, started_epoch_ns: int, since: Since, read: Read) -> int:
    """Return the first step that ended after a time; with an index in the file little is read.

    Raises:
        TraceError: the file cannot be read, or no step ended since.
    """
    with Source(path) as source:
        index = read_index(source)
    if index is not None and index.ended_ns[-1]:
        newest = _ends(read(range(index.steps[-1] - LATE_STEPS, OPEN_END)))
        end_ns, _ = max(newest, default=(index.ended_ns[-1], 0))
        after_ns = _after_ns(since, end_ns, started_epoch_ns)
        trace = read(_near(index, after_ns))
        ended = _ends(trace)
    else:
        trace = read(None)
        ended = _ends(trace)
        if ended:
            after_ns = _after_ns(since, ended[-1][0], started_epoch_ns)
    if not ended or ended[-1][0] <= after_ns:
        raise TraceError(f"{path}: no step ended {since}; omit --since, or go further back")
    first = next(step for end_ns, step in ended if end_ns > after_ns)
    if not trace.rollups:
        return first
    # Of most steps of a rolling recording only the spans are left.
    before = [step + 1 for end_ns, step in ended if end_ns <= after_ns]
    before += (
        span.end for span in trace.rollups.values() if _end_ns(span, started_epoch_ns) <= after_ns
    )
    return min(first, max(before, default=0))


def _after_ns(since: Since, end_ns: int, started_epoch_ns: int) -> int:
    """Return the time in ns since the start of the trace."""
    if since.epoch_ns is None:
        return end_ns - since.before_end_ns
    return since.epoch_ns - started_epoch_ns


def _near(index: StepIndex, after_ns: int) -> range:
    """Return the steps between the marks around a time."""
    place = bisect_right(list(accumulate(index.ended_ns, max)), after_ns)
    first = index.steps[place - 1] if place else 0
    last = index.steps[place] if place < len(index.steps) else OPEN_END
    return range(first - LATE_STEPS, last + LATE_STEPS + 1)


def _ends(trace: RankTrace) -> list[tuple[int, int]]:
    """Return the ends of steps; of a rolling recording, if none is left, of its spans."""
    ends = [(one.end_ns, one.step) for one in trace.steps]
    ends += ((one.end_ns, one.step) for one in trace.totals.values())
    if not ends:
        started_ns = trace.header.started_epoch_ns
        spans = [one for one in trace.rollups.values() if one.steps]
        ends += ((_end_ns(one, started_ns), one.end - 1) for one in spans)
    return sorted(ends)


def _end_ns(span: RollUp, started_epoch_ns: int) -> int:
    """Return when a span ended, since the start of the trace."""
    return (span.begin_s + span.length_s) * 1_000_000_000 - started_epoch_ns
