"""Reads what a run with dsprof recorded."""

from __future__ import annotations

from collections.abc import Iterable

from dsprof.analysis.aggregates.intent import Intent
from dsprof.analysis.run.traffic_differences import Line, compare
from dsprof.analysis.summary import RankClock
from dsprof.trace.rank_trace import RankTrace


def operations(trace: RankTrace, rows: Iterable[int]) -> dict[str, list[int]]:
    """Return {operation: [calls, bytes]} of some rows of a trace's collectives."""
    seen: dict[str, list[int]] = {}
    comm = trace.collectives
    for i in rows:
        entry = seen.setdefault(comm.words[comm.op[i]], [0, 0])
        entry[0] += 1
        entry[1] += int(comm.nbytes[i])
    return seen


def asked_and_sent(trace: RankTrace) -> dict[str, Line]:
    """What the model of the configuration says of a trace, with no tolerance."""
    engine = next(iter(trace.engines.values()), None)
    [account] = Intent.collect(trace, RankClock()).accounts.values()
    lines = compare(account, engine, 0.0, 0.0)
    return {line.what: line for line in lines}
