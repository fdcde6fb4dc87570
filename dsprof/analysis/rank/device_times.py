"""Replaces the host's times of collectives and steps by the device's.

On a device a call returns before its work is done, so the host's times of a collective say nothing.
Its stalls do: `on_device_clock` writes them into the columns that the host's times have on a CPU,
so that all else is computed alike for both. A step is then from where the device came to its end to
where it came to the end of the next.

A collective on the stream on which steps end (the main stream) holds that from start to end. One on
a side stream is exposed as far as the main stream waits for its stream meanwhile, directly or by
way of other streams; streams are queues, so that is exactly what the wait is for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from dsprof.analysis.rank.intervals import Array, Intervals
from dsprof.analysis.rank.steps import on_host_clock
from dsprof.trace.columns import BoolArray, IntArray
from dsprof.trace.rank_trace import Collectives, RankTrace
from dsprof.trace.schema import Stall, Step

_NONE = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))
_ALL_STREAMS = -1


def on_device_clock(trace: RankTrace) -> RankTrace:
    """Return a trace whose collectives and steps have the device's times.

    With collectives in graphs, whose replays are not recorded, and without stalls only the steps
    have the device's times: the host may run far ahead.
    """
    if on_host_clock(trace):
        return trace
    if trace.collectives.captured.any() or not trace.stalls:
        return replace(trace, steps=_steps(trace)) if trace.device_steps else trace
    stalls = _Stalls.of(trace.stalls)
    return replace(
        trace,
        collectives=_collectives(trace.collectives, stalls),
        steps=_steps(trace),
        is_device_timed=True,
    )


@dataclass(frozen=True, slots=True)
class _Stalls:
    """Columns of the stalls that have a place on the host's clock."""

    is_collective: BoolArray  # of one collective; else of whatever the awaited stream did
    is_wait: BoolArray  # of these, for a Work
    is_side: BoolArray
    stream: Array
    awaited: Array
    collective: Array
    start_ns: Array
    end_ns: Array
    issued_ns: Array
    bound_ns: Array

    @classmethod
    def of(cls, stalls: Iterable[Stall]) -> _Stalls:
        placed = [stall for stall in stalls if stall.end_ns]
        kinds = np.array([stall.kind for stall in placed], np.str_)
        names = ("stream", "awaited", "collective", "start_ns", "end_ns", "issued_ns", "bound_ns")
        columns = (np.array([getattr(one, name) for one in placed], np.int64) for name in names)
        return cls(
            (kinds == "collective") | (kinds == "wait"),
            kinds == "wait",
            np.array([one.is_side for one in placed], np.bool_),
            *columns,
        )

    def intervals(self, chosen: BoolArray) -> Intervals:
        return Intervals.union(self.start_ns[chosen], self.end_ns[chosen])

    def exposing(self) -> dict[int, Intervals]:
        """Return when the main stream waited for each side stream, directly or by way of others."""
        waits = ~self.is_collective
        streams = np.unique(self.stream[self.is_side]).tolist()
        targets = {x: waits & np.isin(self.awaited, (x, _ALL_STREAMS)) for x in streams}
        direct = {x: self.intervals(targets[x] & ~self.is_side) for x in streams}
        found = dict(direct)
        for _ in streams:  # one more stream on the way in each round
            found = {
                x: _joined(direct[x], (self._by_way_of(y, targets[x], found[y]) for y in streams))
                for x in streams
            }
        return found

    def _by_way_of(self, stream: int, waits: BoolArray, exposed: Intervals) -> Intervals:
        chosen = waits & self.is_side & (self.stream == stream)
        return self.intervals(chosen) & exposed if chosen.any() else _NONE


def _joined(first: Intervals, others: Iterable[Intervals]) -> Intervals:
    for other in others:
        if len(other.starts):
            first = first | other
    return first


def _collectives(rows: Collectives, stalls: _Stalls) -> Collectives:
    """Return the rows with the times of their stalls; those that have none are untimed."""
    place, found = _places(rows.id, stalls.collective)
    mine = np.flatnonzero(stalls.is_collective & found)
    place = place[mine]
    start, end, issued = stalls.start_ns[mine], stalls.end_ns[mine], stalls.issued_ns[mine]
    exposed_from, exposed_ns = _exposed(stalls, mine)
    may_overlap = stalls.is_wait[mine] | stalls.is_side[mine]
    # Without a mark on its stream it began when the host enqueued it, or later.
    enqueued = np.where(stalls.is_wait[mine], rows.issue_ns[place], start)
    begin = np.minimum(np.where(issued > 0, issued, enqueued), start)
    # What held its stream ended with the stall, to the moment; else it had ended before.
    pending = np.where(stalls.is_wait[mine] & (end <= start), begin, end)
    columns: dict[str, Any] = {
        "issue_ns": begin,
        "return_ns": np.where(may_overlap, begin, end),
        "pending_ns": pending,
        "done_ns": end,
        "wait_ns": np.where(may_overlap, exposed_from, begin),
        "waited_ns": np.where(may_overlap, exposed_from + exposed_ns, end),
        "blocked_ns": exposed_ns,
        "waits": np.ones(len(mine), np.int64),
        "bound_ns": stalls.bound_ns[mine],
    }
    is_async = rows.is_async.copy()
    is_untimed = (rows.done_ns == 0) & rows.on_wire & ~rows.is_open
    is_async[place], is_untimed[place] = may_overlap, False
    is_async |= is_untimed & (rows.coalesced > 0)  # its whole batch blocks the stream
    is_background = rows.is_background & (rows.done_ns != 0)  # the host saw those to the end
    is_background[place] = False  # what holds the main stream tells, and not the thread
    return replace(
        rows,
        is_async=is_async,
        is_untimed=is_untimed,
        is_background=is_background,
        **{name: _with(getattr(rows, name), place, new) for name, new in columns.items()},
    )


def _exposed(stalls: _Stalls, mine: Array) -> tuple[Array, Array]:
    """Return from when on, and for how long, each collective held the main stream."""
    start, end, stream = stalls.start_ns[mine], stalls.end_ns[mine], stalls.stream[mine]
    begin, length = start.copy(), np.maximum(end - start, 0)
    side = stalls.is_side[mine]
    for number, exposing in stalls.exposing().items():
        on = np.flatnonzero(side & (stream == number))
        length[on] = exposing.within(start[on], np.maximum(end[on], start[on]))
        begin[on] = np.minimum(np.maximum(start[on], exposing.next_start(start[on])), end[on])
    return begin, length


def _places(ids: IntArray, wanted: Array) -> tuple[Array, BoolArray]:
    """Return the row of each wanted id, and whether there is one."""
    if not len(ids):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
    order = np.argsort(ids, kind="stable")
    index = order[np.minimum(np.searchsorted(ids, wanted, sorter=order), len(ids) - 1)]
    return index, np.asarray(ids[index] == wanted, np.bool_)


def _with(column: IntArray, place: Array, values: Array) -> Any:
    changed = column.astype(np.int64)
    changed[place] = values
    return changed


def _steps(trace: RankTrace) -> list[Step]:
    """Return the steps as the device went through them.

    Those after the last one that it had come through when the recording ended are left out.
    """
    windows = {step.step: step for step in trace.device_steps}
    if not windows:
        return trace.steps
    last = max(windows)
    return [
        msgspec.structs.replace(
            step, start_ns=windows[step.step].start_ns, end_ns=windows[step.step].end_ns
        )
        if step.step in windows
        else step
        for step in trace.steps
        if step.step <= last
    ]
