"""The last moments of a rank, after its trace was last written, as its live state has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

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
    known = set(trace.collectives.id.tolist())
    unknown = [call for call in state.calls if call.id not in known and call.issue_ns >= start_ns]
    rows = _ended(trace.collectives, state)
    if unknown:
        more = _table(unknown, start_ns)
        more.is_background = np.isin(more.thread, _beside_training(trace, unknown))
        rows = appended(rows, more)
    return replace(
        trace,
        collectives=rows,
        groups=state.groups | trace.groups,
        sites=state.sites | trace.sites,
        heartbeats=[*trace.heartbeats, _heartbeat(state)],
    )


def _beside_training(trace: RankTrace, calls: Sequence[StateCall]) -> list[int]:
    """Return the threads of calls that run beside the training.

    The state does not hold phases. What trains has communicated by the end of the first step.
    """
    rows = trace.collectives
    training = {span.thread for span in trace.spans if not span.is_annotation}
    beside = set(rows.thread[rows.is_background].tolist())
    if training and trace.steps:
        beside |= {call.thread for call in calls} - training - set(rows.thread.tolist())
    return [*beside]


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


def _table(calls: Sequence[StateCall], start_ns: int) -> Collectives:
    ends = [_end(call.done_ns, start_ns) for call in calls]
    issue_ns = [call.issue_ns - start_ns for call in calls]
    numbers = {
        "id": [call.id for call in calls],
        "group": [call.group for call in calls],
        "seq": [call.seq for call in calls],
        "nbytes": [call.nbytes for call in calls],
        "elements": [call.nbytes // item_bytes(call.dtype) for call in calls],
        "tensors": [int(bool(call.dtype)) for call in calls],
        "site": [call.site for call in calls],
        "step": [call.step for call in calls],
        "peer": [call.peer for call in calls],
        "thread": [call.thread for call in calls],
        "issue_ns": issue_ns,
        "return_ns": issue_ns,
        "pending_ns": [
            0 if call.done_ns == UNFOLLOWED else ns
            for call, ns in zip(calls, issue_ns, strict=True)
        ],
        "done_ns": [done for done, _, _ in ends],
        "waited_ns": [waited for _, waited, _ in ends],
        "waits": [waits for _, _, waits in ends],
    }
    builder = CollectivesBuilder()
    builder.add_columns(
        {"op": [call.op for call in calls], "dtype": [call.dtype for call in calls]},
        {name: np.array(values, np.int64) for name, values in numbers.items()},
    )
    return replace(builder.build(), is_open=np.array([call.is_in_flight for call in calls]))
