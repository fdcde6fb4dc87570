"""Traffic of gradients and parameters by phase and dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from dsprof.analysis.aggregates.traffic import PURPOSES, Purpose, purposes
from dsprof.analysis.rank.blocked_time import BlockedTime, between_ranks, blocked_rows
from dsprof.analysis.rank.steps import detailed_steps
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.collectives import family
from dsprof.trace.columns import BoolArray, IntArray
from dsprof.trace.rank_trace import RankTrace


class WireKind(NamedTuple):
    """Collectives of one row have this in common."""

    purpose: Purpose
    family: str  # all_reduce, whatever the spelling of the op
    phase: str
    dtype: str
    is_async: bool


@dataclass(frozen=True, slots=True)
class WireDtypes(Aggregate):
    """Sums by kind, of groups of two or more ranks, in measured steps in full detail."""

    rows: dict[WireKind, BlockedTime]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> WireDtypes:
        table, steps = trace.collectives, detailed_steps(trace)
        chosen = between_ranks(trace, steps)
        purpose = purposes(trace)
        columns: list[IntArray | BoolArray] = [purpose, table.op, table.phase, table.dtype]
        columns.append(table.is_async)

        def kind_of(row: int) -> WireKind:
            return WireKind(
                PURPOSES[purpose[row]],
                family(table.words[table.op[row]]),
                table.words[table.phase[row]],
                table.words[table.dtype[row]],
                bool(table.is_async[row]),
            )

        return cls(blocked_rows(trace, chosen, columns, len(steps), kind_of))

    def chosen(self, wanted: Callable[[WireKind], bool]) -> dict[WireKind, BlockedTime]:
        """Return the rows of the kinds that are wanted."""
        return {kind: sums for kind, sums in self.rows.items() if wanted(kind)}
