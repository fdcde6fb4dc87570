"""Sends and receives between two ranks: batched or single."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    """Sums by kind, in measured steps in full detail.

    Kinds differ between ranks, such as the stages of a pipeline. So means of several kinds divide
    by the steps of all ranks that send or receive, not by those of the ranks with each kind.
    """

    rows: dict[PointToPointKind, BlockedTime]
    rank_steps: int  # of all ranks in `rows`
    both_ways: dict[PointToPointKind, BlockedTime]  # single ones, of ranks that do both
    both_ways_rank_steps: int

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> PointToPoint:
        table, steps = trace.collectives, detailed_steps(trace)
        mine = table.of_families(POINT_TO_POINT) & in_steps(table.step, steps) & table.on_wire
        batched = np.asarray(table.coalesced > 0, np.bool_)

        def kind_of(row: int) -> PointToPointKind:
            group = trace.groups.get(int(table.group[row]))
            return PointToPointKind(
                family(table.words[table.op[row]]),
                group.backend if group is not None else "",
                table.words[table.requested[row]],
                bool(batched[row]),
            )

        columns: list[IntArray | BoolArray] = [table.op, table.group, table.requested, batched]
        rows = blocked_rows(trace, np.flatnonzero(mine), columns, len(steps), kind_of)
        single = {kind: sums for kind, sums in rows.items() if not kind.is_batched}
        both = {kind.family for kind in single} == POINT_TO_POINT
        return cls(
            rows=rows,
            rank_steps=len(steps) if rows else 0,
            both_ways=single if both else {},
            both_ways_rank_steps=len(steps) if both else 0,
        )

    @property
    def of_all(self) -> dict[PointToPointKind, BlockedTime]:
        """Return `rows`, to be averaged over all ranks that send or receive."""
        return _averaged(self.rows, self.rank_steps)

    @property
    def both_ways_of_all(self) -> dict[PointToPointKind, BlockedTime]:
        """Return `both_ways`, to be averaged over all ranks that do both."""
        return _averaged(self.both_ways, self.both_ways_rank_steps)


def _averaged(
    rows: Mapping[PointToPointKind, BlockedTime], rank_steps: int
) -> dict[PointToPointKind, BlockedTime]:
    return {kind: replace(sums, rank_steps=rank_steps) for kind, sums in rows.items()}
