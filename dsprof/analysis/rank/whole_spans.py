"""Sums over time of one rank, by the length of the spans."""

from __future__ import annotations

from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.rolling.rollups import SPANS_S
from dsprof.trace.schema import RollUp


def whole_spans(trace: RankTrace) -> dict[int, list[RollUp]]:
    """Return the spans with steps of each length that has the first one, the shortest first.

    Where a budget is full, the oldest of the short ones were dropped.
    """
    found = _by_length(trace, with_steps=True)
    first = min((one.first_step for spans in found.values() for one in spans), default=0)
    return {
        length_s: spans
        for length_s, spans in found.items()
        if any(one.first_step == first for one in spans)
    }


def whole_times(trace: RankTrace) -> dict[int, list[RollUp]]:
    """Return the same of a rank without steps: the lengths that hold all the time recorded."""
    found = _by_length(trace, with_steps=False)
    recorded_ns = {length_s: sum(one.total_ns for one in found[length_s]) for length_s in found}
    most_ns = max(recorded_ns.values()) or -1
    return {length_s: found[length_s] for length_s in found if recorded_ns[length_s] == most_ns}


def _by_length(trace: RankTrace, *, with_steps: bool) -> dict[int, list[RollUp]]:
    found: dict[int, list[RollUp]] = {length_s: [] for length_s in SPANS_S}
    for one in trace.rollups.values():
        if one.length_s in found and bool(one.steps) is with_steps:
            found[one.length_s].append(one)
    return found
