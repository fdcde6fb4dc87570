"""The last moments of a rank, after its trace was last written, as its live state has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from dsprof.analysis.rank.record_columns import int_column
from dsprof.trace.columns import BoolArray, IntArray
from dsprof.trace.dtypes import item_bytes
from dsprof.trace.dumps.state_file import UNFOLLOWED, RankState, StateCall
from dsprof.trace.rank_trace import Collectives, CollectivesBuilder, RankTrace, appended
from dsprof.trace.schema import Heartbeat


def to_the_end(trace: RankTrace) -> RankTrace:
    """Return the trace of a killed rank with the collectives that only its state knows."""
    state = trace.state
    if state is None:
        return trace
    start_ns = trace.header.started_monotonic_ns
    table = trace.collectives
    both = np.flatnonzero(np.isin(table.id, [call.id for call in state.calls]))
    thread_of = dict(zip(table.id[both].tolist(), table.thread[both].tolist(), strict=True))
    unknown = [
        call for call in state.calls if call.id not in thread_of and call.issue_ns >= start_ns
    ]
    rows = _ended(table, state)
    if unknown:
        more = _table(unknown, start_ns)
        more.thread, more.is_background = _threads(trace, state, unknown, thread_of)
        rows = appended(rows, more)
    return replace(
        trace,
        collectives=rows,
        groups=state.groups | trace.groups,
        sites=state.sites | trace.sites,
        heartbeats=[*trace.heartbeats, _heartbeat(state)],
    )


def _threads(
    trace: RankTrace, state: RankState, calls: Sequence[StateCall], thread_of: Mapping[int, int]
) -> tuple[IntArray, BoolArray]:
    """Return the threads of calls, and whether they run beside the training.

    The trace numbers threads, and the state does not: calls that both have, by `thread_of` their
    ids, say which is which. The state does not hold phases. What trains has communicated by the
    end of the first step; where it has not, another thread may be the one that trains.
    """
    rows = trace.collectives
    known = {c.thread: thread_of[c.id] for c in state.calls if c.id in thread_of}
    training = {span.thread for span in trace.spans if not span.is_annotation}
    first = max([int(rows.thread.max(initial=0)), *training]) + 1
    others = dict.fromkeys(call.thread for call in calls if call.thread not in known)
    new = {thread: first + i for i, thread in enumerate(others)}
    beside = set(rows.thread[rows.is_background].tolist())
    if trace.steps and training and training <= {*known.values()}:
        beside |= {*new.values()}
    threads = np.array([(known | new)[call.thread] for call in calls], np.int64)
    return threads, np.isin(threads, [*beside])


def _heartbeat(state: RankState) -> Heartbeat:
    begun_ns = [call.issue_ns for call in state.in_flight]
    oldest_ns = state.beat_ns - min(begun_ns, default=state.beat_ns)
    time_ns = max(state.beat_ns - state.header.started_monotonic_ns, 0)
    return Heartbeat(time_ns, max(state.step - 1, -1), len(begun_ns), max(oldest_ns, 0))


def _ended(rows: Collectives, state: RankState) -> Collectives:
    """Give an end to the rows that were in flight when they were written, and ended since."""
    start_ns = state.header.started_monotonic_ns
    ends = {call.id: call.done_ns for call in state.calls if call.done_ns}
    changed = [row for row in np.flatnonzero(rows.is_open) if int(rows.id[row]) in ends]
    if not changed:
        return rows
    done_ns, waited_ns, waits = (
        column.astype(np.int64) for column in (rows.done_ns, rows.waited_ns, rows.waits)
    )
    for row in changed:
        done_ns[row], waited_ns[row], waits[row] = _end(ends[int(rows.id[row])], start_ns)
    is_open = rows.is_open.copy()
    is_open[changed] = False
    return replace(rows, is_open=is_open, done_ns=done_ns, waited_ns=waited_ns, waits=waits)


def _end(done_ns: int, start_ns: int) -> tuple[int, int, int]:
    """Return when a call was done and a wait for it ended, and how many waits for it failed."""
    if done_ns < 0:
        return 0, -done_ns - start_ns, 1
    return (done_ns - start_ns if done_ns > UNFOLLOWED else 0), 0, 0


_AS_THEY_ARE = ("id", "group", "seq", "nbytes", "site", "step", "peer")


def _table(calls: Sequence[StateCall], start_ns: int) -> Collectives:
    issue_ns, done_ns = int_column(calls, "issue_ns") - start_ns, int_column(calls, "done_ns")
    ended_ns, waited_ns, waits = np.array([_end(ns, start_ns) for ns in done_ns.tolist()]).T
    numbers = {name: int_column(calls, name) for name in _AS_THEY_ARE} | {
        "elements": np.array([call.nbytes // item_bytes(call.dtype) for call in calls]),
        "tensors": np.array([int(bool(call.dtype)) for call in calls]),
        "issue_ns": issue_ns,
        "return_ns": issue_ns,
        "pending_ns": np.where(done_ns == UNFOLLOWED, 0, issue_ns),
        "done_ns": ended_ns,
        "waited_ns": waited_ns,
        "waits": waits,
    }
    builder = CollectivesBuilder()
    builder.add_columns(
        {"op": [call.op for call in calls], "dtype": [call.dtype for call in calls]}, numbers
    )
    return replace(builder.build(), is_open=np.array([call.is_in_flight for call in calls]))
