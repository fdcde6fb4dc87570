"""Intervals on a rank's host clock: unions, intersections, and their parts in a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dsprof.analysis.rank.record_columns import int_column, span_columns
from dsprof.analysis.rank.remembered import remembered
from dsprof.trace.columns import BoolArray, IntArray
from dsprof.trace.rank_trace import Collectives, RankTrace
from dsprof.trace.schema import Copy, Phase

Array = npt.NDArray[np.int64]

WAIT_OVERHEAD_NS = 100_000
"""A wait for a collective that is already complete takes less."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """Disjoint intervals in ascending order: `starts[i] <= t < ends[i]`, in ns."""

    starts: Array
    ends: Array

    @classmethod
    def union(cls, starts: IntArray, ends: IntArray) -> Intervals:
        """Join intervals that overlap or touch; empty and reversed ones vanish."""
        some = ends > starts
        starts, ends = starts[some].astype(np.int64), ends[some].astype(np.int64)
        if (starts[1:] < starts[:-1]).any():
            order = np.argsort(starts, kind="stable")
            starts, ends = starts[order], ends[order]
        reach = np.maximum.accumulate(ends)
        opens = np.ones(len(starts), np.bool_)
        opens[1:] = starts[1:] > reach[:-1]
        closes = np.append(opens[1:], True) if len(starts) else opens
        return cls(starts[opens], reach[closes])

    @classmethod
    def of(cls, spans: Sequence[Phase | Copy]) -> Intervals:
        """Join what records cover."""
        return cls.union(int_column(spans, "start_ns"), int_column(spans, "end_ns"))

    def __or__(self, other: Intervals) -> Intervals:
        return Intervals.union(
            np.concatenate([self.starts, other.starts]), np.concatenate([self.ends, other.ends])
        )

    def __and__(self, other: Intervals) -> Intervals:
        first = np.searchsorted(other.ends, self.starts, side="right")
        counts = np.maximum(np.searchsorted(other.starts, self.ends, side="left") - first, 0)
        mine = np.repeat(np.arange(len(counts)), counts)
        theirs = np.arange(len(mine)) + np.repeat(first - np.cumsum(counts) + counts, counts)
        return Intervals.union(
            np.maximum(self.starts[mine], other.starts[theirs]),
            np.minimum(self.ends[mine], other.ends[theirs]),
        )

    def __sub__(self, other: Intervals) -> Intervals:
        bounds = np.iinfo(np.int64)
        outside = Intervals(np.append(bounds.min, other.ends), np.append(other.starts, bounds.max))
        return self & outside

    def near(self, start_ns: int, end_ns: int) -> Intervals:
        """Return the intervals that reach into a window or touch it."""
        first = np.searchsorted(self.ends, start_ns, side="left")
        last = np.searchsorted(self.starts, end_ns, side="right")
        return Intervals(self.starts[first:last], self.ends[first:last])

    def holding(self, moments: Array) -> Intervals:
        """Return the intervals in which any of the moments is."""
        moments = np.sort(moments)
        first = np.searchsorted(moments, self.starts)
        some = np.searchsorted(moments, self.ends) > first
        return Intervals(self.starts[some], self.ends[some])

    @property
    def length_ns(self) -> int:
        """The time that is covered."""
        return int((self.ends - self.starts).sum())

    def within(self, starts: IntArray, ends: IntArray) -> Array:
        """Return how many ns of each window `[starts[i], ends[i])` are covered."""
        return self._before(ends) - self._before(starts)

    def next_start(self, times: IntArray) -> Array:
        """Return where the first interval starts that is not over at each time; `times` if none."""
        index = np.searchsorted(self.ends, times, side="right")
        some = index < len(self.starts)
        found = self.starts[np.minimum(index, len(self.starts) - 1)] if len(self.starts) else times
        return np.where(some, found, times).astype(np.int64)

    def _before(self, times: IntArray) -> Array:
        """Return how many ns are covered before each time."""
        covered = np.concatenate([[0], np.cumsum(self.ends - self.starts)])
        index = np.searchsorted(self.starts, times, side="right")
        last_end = self.ends[np.maximum(index - 1, 0)] if len(self.ends) else np.zeros_like(times)
        beyond = np.where(index > 0, np.maximum(last_end - times, 0), 0)
        return np.asarray(covered[index] - beyond, np.int64)


@remembered
def blocked(rows: Collectives) -> tuple[Array, Array]:
    """Return start and end of the time in which each collective held its caller.

    A synchronous one holds it from issue to the end of its wait, or to its return where no wait
    was seen. An asynchronous one holds it in `wait()`; where it was waited for more than once, the
    time blocked is placed at the first wait, for later waits find it complete. Without a wait, or
    in a thread beside the training, the interval is empty.
    """
    sync_end = np.where(rows.waited_ns > 0, rows.waited_ns, rows.return_ns)
    start = np.where(rows.is_async, rows.wait_ns, rows.issue_ns).astype(np.int64)
    async_end = np.minimum(rows.waited_ns, rows.wait_ns.astype(np.int64) + rows.blocked_ns)
    end = np.where(rows.is_async, async_end, sync_end)
    return start, np.where(rows.is_background, start, np.maximum(start, end))


def completion(rows: Collectives) -> tuple[Array, Array]:
    """Return the bounds between which each collective completed; 0 where that was not seen.

    A collective is complete at the latest when it was first seen done, or when the synchronous
    call returned; and not before it was last seen pending. A wait that blocked shows the moment,
    unless only bounds of the wait are known.
    """
    latest = completed(rows)
    held = (rows.done_ns == rows.waited_ns) & (rows.blocked_ns > WAIT_OVERHEAD_NS)
    exact = ~rows.is_async | (held & ~rows.is_estimated)
    seen_pending = np.maximum(rows.pending_ns, rows.issue_ns)
    earliest = np.where(exact, latest, np.minimum(seen_pending, latest))
    return earliest.astype(np.int64, copy=False), latest


@remembered
def completed(rows: Collectives) -> Array:
    """Return when each collective was complete at the latest, as `completion` does."""
    returned = np.where(rows.waited_ns > 0, rows.waited_ns, rows.return_ns)
    latest = np.where(rows.done_ns > 0, rows.done_ns, np.where(rows.is_async, 0, returned))
    return latest.astype(np.int64, copy=False)


@remembered
def unseen(rows: Collectives) -> BoolArray:
    """Say of which collectives it is not known how long they held anyone."""
    unwaited = rows.is_async & (rows.waits == 0)
    unknown = (rows.is_untimed | unwaited) & ~rows.is_background
    unknown &= ~(_ends_with_a_later_one(rows, unwaited) | _left_at_the_end(rows, unwaited))
    # What a backend launches together has one wait, or one stall, for all of it.
    known_batches = rows.coalesced[~unknown & (rows.coalesced > 0)]
    return np.asarray(unknown & ~np.isin(rows.coalesced, known_batches), np.bool_)


def without_size(rows: Collectives) -> BoolArray:
    """Say of which collectives it is not known how much they sent; a barrier sends nothing."""
    return np.asarray((rows.tensors == 0) & ~rows.of_families({"barrier"}), np.bool_)


def _ends_with_a_later_one(rows: Collectives, unwaited: BoolArray) -> BoolArray:
    """Say which collectives a library issues in a row, to wait only for the last of them.

    So does DeepSpeed up to 0.18 with the parameters of ZeRO-3 after the step: a group's
    collectives end in order, and the wait for the last one blocks the caller for all of them. Only
    of calls of a library above c10d: of others a wait in C++ may have gone unseen.
    """
    asked = np.flatnonzero(rows.is_async & (rows.request > 0))
    found = np.zeros(len(rows), np.bool_)
    if not unwaited[asked].any():
        return found
    kinds = (rows.thread, rows.group, rows.requested, rows.step, rows.phase)
    asked = asked[np.lexsort((rows.id[asked], *(kind[asked] for kind in kinds)))]
    places = np.arange(len(asked))
    waited = np.where(unwaited[asked], len(asked), places)  # places of those with a wait
    last = np.minimum(np.minimum.accumulate(waited[::-1])[::-1], len(asked) - 1)
    is_one = np.logical_and.reduce([kind[asked] == kind[asked[last]] for kind in kinds])
    found[asked] = is_one & unwaited[asked] & ~unwaited[asked[last]]
    return found


def _left_at_the_end(rows: Collectives, unwaited: BoolArray) -> BoolArray:
    """Say which are the last of a line that waited for those before: none held its caller.

    A program that loads batches ahead, such as a pipeline of TorchRec, ends with some in flight,
    and so does a recording that stops before their wait.
    """
    asked = np.flatnonzero(rows.is_async & (rows.site > 0))
    found = np.zeros(len(rows), np.bool_)
    if not unwaited[asked].any():
        return found
    kinds = (rows.thread, rows.group, rows.op, rows.site)
    asked = asked[np.lexsort((rows.id[asked], *(kind[asked] for kind in kinds)))]
    begins = [np.diff(kind[asked].astype(np.int64), prepend=-1) != 0 for kind in kinds]
    first = np.flatnonzero(np.logical_or.reduce(begins))
    calls = np.diff(first, append=len(asked))
    left = np.add.reduceat(unwaited[asked], first, dtype=np.int64)
    place = np.arange(len(asked)) - np.repeat(first, calls)
    at_end = unwaited[asked] & (place >= np.repeat(calls - left, calls))
    are_few = 2 * left < calls
    are_last = np.add.reduceat(at_end, first, dtype=np.int64) == left
    found[asked] = at_end & np.repeat(are_few & are_last, calls)
    return found


def exposed(trace: RankTrace) -> Intervals:
    """Return when the rank made no progress because it waited for communication.

    Threads that wait at the same time count once.
    """
    return Intervals.union(*blocked(trace.collectives))


def copies(trace: RankTrace) -> Intervals:
    """Return when the rank was in a function that copies between host and device."""
    return Intervals.of(trace.copies)


@remembered
def phases(trace: RankTrace) -> Intervals:
    """Return when the rank was in a phase of the training loop."""
    spans = span_columns(trace)
    is_phase = ~spans.is_annotation
    return Intervals.union(spans.start_ns[is_phase], spans.end_ns[is_phase])
