"""How long like calls blocked the ranks: sums that keep the least blocked rank."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from dsprof.analysis.rank.group_by import Groups, group_rows
from dsprof.analysis.rank.intervals import Array, blocked, unseen, without_size
from dsprof.analysis.rank.steps import in_steps, is_timed
from dsprof.analysis.summary import SMALLEST, Sums
from dsprof.trace.columns import BoolArray, IntArray
from dsprof.trace.rank_trace import RankTrace

K = TypeVar("K", bound=Hashable)
B = TypeVar("B", bound="BlockedTime")
N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class BlockedTime(Sums):
    """Sums over ranks and measured steps; None: not measurable here."""

    calls: int
    nbytes: int
    rank_steps: int  # measured steps, summed over the ranks that made such calls
    exposed_ns: int | None
    least_exposed_ns: float | None = field(metadata=SMALLEST)  # of a step, on the least held rank
    unsized: int = 0  # calls of which it is not known how much they sent

    @property
    def calls_per_step(self) -> float:
        """Calls of one rank and step."""
        return self.calls / self.rank_steps if self.rank_steps else 0.0

    @property
    def bytes_per_step(self) -> float:
        """Bytes of one rank and step."""
        return self.nbytes / self.rank_steps if self.rank_steps else 0.0

    @property
    def exposed_ms_per_step(self) -> float | None:
        """Mean over ranks and steps; None where it was not measured."""
        if self.exposed_ns is None or not self.rank_steps:
            return None
        return self.exposed_ns / self.rank_steps / 1e6

    def beside(self: B, other: B) -> B:
        """Join the sums of further calls of the same rank."""
        least = added(self.least_exposed_ns, other.least_exposed_ns)
        return replace(self + other, rank_steps=self.rank_steps, least_exposed_ns=least)


def between_ranks(trace: RankTrace, steps: Array) -> Array:
    """Return the indices of the collectives of `steps` in groups of two or more ranks."""
    table = trace.collectives
    alone = [number for number, group in trace.groups.items() if group.size == 1]
    mine = in_steps(table.step, steps) & table.on_wire
    return np.flatnonzero(mine & ~np.isin(table.group, alone))


def blocked_rows(
    trace: RankTrace,
    chosen: Array,
    columns: Sequence[IntArray | BoolArray],
    steps: int,
    kind_of: Callable[[int], K],
) -> dict[K, BlockedTime]:
    """Add up the `chosen` collectives of one rank that agree in `columns`, by their kind.

    `columns` have one element a row of the trace, and `kind_of` gets the number of a row.
    """
    rows: dict[K, BlockedTime] = {}
    if not len(chosen) or not steps:
        return rows
    groups = group_rows([column[chosen] for column in columns])
    found = blocked_sums(trace, chosen, groups, steps, BlockedTime)
    for row, sums in zip(chosen[groups.first].tolist(), found, strict=True):
        kind = kind_of(row)
        rows[kind] = rows[kind].beside(sums) if kind in rows else sums
    return rows


def blocked_sums(
    trace: RankTrace, chosen: Array, groups: Groups, steps: int, sums: type[B]
) -> Iterator[B]:
    """Yield the sums of each group of the chosen rows; calls that overlap count twice."""
    rows = trace.collectives
    start, end = blocked(rows)
    exposed = groups.sums((end - start)[chosen])
    known = (groups.sums(unseen(rows)[chosen]) == 0) & is_timed(trace)
    counts, nbytes = groups.counts(), groups.sums(rows.nbytes[chosen])
    unsized = groups.sums(without_size(rows)[chosen])
    for g in range(len(groups)):
        held_ns = int(exposed[g]) if known[g] else None
        least = None if held_ns is None else held_ns / steps
        yield sums(int(counts[g]), int(nbytes[g]), steps, held_ns, least, int(unsized[g]))


def added(one: N | None, other: N | None) -> N | None:
    """Return the sum, None if a part is not known."""
    return None if one is None or other is None else one + other
