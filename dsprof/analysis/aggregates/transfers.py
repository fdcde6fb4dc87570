"""Sends and receives between two ranks: batched or one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dsprof.analysis.collectives import family
from dsprof.analysis.held import Held, held_rows
from dsprof.analysis.steps import detailed_steps, in_steps
from dsprof.analysis.summary import Aggregate, RankClock, add_rows
from dsprof.trace.table import BoolArray, IntArray, RankTrace

FAMILIES = ("send", "recv")


class TransferKind(NamedTuple):
    """What transfers of one row have in common."""

    family: str  # "send" or "recv"
    backend: str
    requested: str
    is_batched: bool  # launched together with others


@dataclass(frozen=True, slots=True)
class Transfers(Aggregate):
    """Sums by kind, in measured steps in full detail."""

    rows: dict[TransferKind, Held]
    both_ways: dict[TransferKind, Held]  # single ones, of ranks that send and receive such

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Transfers:
        """Sort the transfers of one rank."""
        table, steps = trace.collectives, detailed_steps(trace)
        codes = [code for code, word in enumerate(table.words) if family(word) in FAMILIES]
        mine = np.isin(table.op, codes) & in_steps(table.step, steps) & table.on_wire
        batched = np.asarray(table.coalesced > 0, np.bool_)
        columns: list[IntArray | BoolArray] = [table.op, table.group, table.requested, batched]
        rows: dict[TransferKind, Held] = {}
        for index, held in held_rows(trace, np.flatnonzero(mine), columns, len(steps)):
            group = trace.groups.get(int(table.group[index]))
            kind = TransferKind(
                family(table.words[table.op[index]]),
                group.backend if group is not None else "",
                table.words[table.requested[index]],
                bool(batched[index]),
            )
            rows[kind] = rows[kind].beside(held) if kind in rows else held
        single = {kind: held for kind, held in rows.items() if not kind.is_batched}
        both = {kind.family for kind in single} == set(FAMILIES)
        return cls(rows, single if both else {})

    def merge(self, other: Transfers) -> Transfers:
        """Add up rows of the same kind."""
        return Transfers(add_rows(self.rows, other.rows), add_rows(self.both_ways, other.both_ways))
