"""Sends and receives between two ranks: batched or single."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dsprof.analysis.rank.blocked_time import BlockedTime, blocked_rows
from dsprof.analysis.rank.steps import detailed_steps, in_steps
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.collectives import POINT_TO_POINT, family
from dsprof.trace.columns import BoolArray, IntArray
from dsprof.trace.rank_trace import RankTrace


class PointToPointKind(NamedTuple):
    """Transfers of one row have this in common."""

    family: str  # "send" or "recv"
    backend: str
    requested: str
    is_batched: bool  # launched together with others


@dataclass(frozen=True, slots=True)
class PointToPoint(Aggregate):
    """Sums by kind, in measured steps in full detail."""

    rows: dict[PointToPointKind, BlockedTime]
    both_ways: dict[PointToPointKind, BlockedTime]  # single ones, of ranks that do both

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> PointToPoint:
        """Sort the transfers of one rank."""
        table, steps = trace.collectives, detailed_steps(trace)
        codes = [code for code, word in enumerate(table.words) if family(word) in POINT_TO_POINT]
        mine = np.isin(table.op, codes) & in_steps(table.step, steps) & table.on_wire
        batched = np.asarray(table.coalesced > 0, np.bool_)
        columns: list[IntArray | BoolArray] = [table.op, table.group, table.requested, batched]
        rows: dict[PointToPointKind, BlockedTime] = {}
        for index, sums in blocked_rows(trace, np.flatnonzero(mine), columns, len(steps)):
            group = trace.groups.get(int(table.group[index]))
            kind = PointToPointKind(
                family(table.words[table.op[index]]),
                group.backend if group is not None else "",
                table.words[table.requested[index]],
                bool(batched[index]),
            )
            rows[kind] = rows[kind].beside(sums) if kind in rows else sums
        single = {kind: sums for kind, sums in rows.items() if not kind.is_batched}
        both = {kind.family for kind in single} == POINT_TO_POINT
        return cls(rows, single if both else {})


AGGREGATE = PointToPoint
