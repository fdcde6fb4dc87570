"""Reads what a run with dsprof recorded."""

from __future__ import annotations

from collections.abc import Iterable

from dsprof.trace.table import RankTrace


def operations(trace: RankTrace, rows: Iterable[int]) -> dict[str, list[int]]:
    """Return {operation: [calls, bytes]} of some rows of a trace's collectives."""
    seen: dict[str, list[int]] = {}
    comm = trace.collectives
    for i in rows:
        entry = seen.setdefault(comm.words[comm.op[i]], [0, 0])
        entry[0] += 1
        entry[1] += int(comm.nbytes[i])
    return seen
