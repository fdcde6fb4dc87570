"""Sums over time of one rank, by the length of the spans."""

from __future__ import annotations

from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.rolling.rollups import SPANS_S
from dsprof.trace.schema import RollUp


def whole_spans(trace: RankTrace) -> dict[int, list[RollUp]]:
    """Return the spans of each length that has them from the first step on, the shortest first.

    Where a budget is full, the oldest of the short ones were dropped.
    """
    first = min((one.first_step for one in trace.rollups.values()), default=0)
    found: dict[int, list[RollUp]] = {length_s: [] for length_s in SPANS_S}
    for one in trace.rollups.values():
        if one.length_s in found:
            found[one.length_s].append(one)
    return {
        length_s: spans
        for length_s, spans in found.items()
        if any(one.first_step == first for one in spans)
    }
