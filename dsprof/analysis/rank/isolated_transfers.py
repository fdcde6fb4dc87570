"""Isolated transfers: collectives without a wait for others and with no other in flight."""

from __future__ import annotations

import numpy as np

from dsprof.analysis.rank.intervals import Array, blocked, completion
from dsprof.trace.columns import BoolArray
from dsprof.trace.rank_trace import RankTrace

_HELD_SHARE = 0.9
"""The rank must have waited for this share of a transfer: computation beside it slows it."""
TIGHTNESS = 10
"""How many times longer than the doubt about its end a call must take, to be given a speed."""


def isolated(trace: RankTrace) -> BoolArray:
    """Say which rows of a trace have a known end, blocked their rank, and were isolated.

    Of the last rank to enter such a collective, the time in flight is that of the transfer. A
    profiler sees no waits: of its kernels it is only asked that no other communicates meanwhile.
    """
    rows = trace.collectives
    start = rows.issue_ns.astype(np.int64)
    if trace.device is not None:
        return alone(start, rows.done_ns.astype(np.int64))
    earliest, done = completion(rows)
    flight = done - start
    found = (done > 0) & ((done - earliest) * TIGHTNESS <= flight)
    del earliest  # a million rows take eight megabytes a column
    found &= alone(start, done)
    blocked_from, blocked_until = blocked(rows)
    held = np.minimum(blocked_until, done) - np.maximum(blocked_from, start)
    return np.asarray(found & (held >= _HELD_SHARE * flight), np.bool_)


def alone(starts: Array, ends: Array) -> BoolArray:
    """Say which intervals no other overlaps; those that end before they start are none."""
    found = np.zeros(len(starts), np.bool_)
    some = np.flatnonzero(ends > starts)
    order = some[np.argsort(starts[some], kind="stable")]
    if len(order):
        reach = np.maximum.accumulate(ends[order])
        begins_after = np.append(True, starts[order][1:] >= reach[:-1])
        ends_before = np.append(starts[order][1:] >= ends[order][:-1], True)
        found[order] = begins_after & ends_before
    return found
