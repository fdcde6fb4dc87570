"""Who waited for whom: the matrix of waits by rank and step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

from dsprof.diagnosis.parts.communication import ArrivalInfo
from dsprof.diagnosis.parts.steps import WaitMatrix

MAX_COLUMNS = 60
MAX_RANKS = 64


@dataclass(frozen=True, slots=True)
class Cell:
    """One rank in one step, or in several neighbours."""

    label: str  # of the steps
    ns: float | None  # mean wait; None: no data
    part: float  # of the longest wait of all cells
    is_last: bool  # others waited longest for this rank


@dataclass(frozen=True, slots=True)
class WaitRow:
    """One rank."""

    rank: int
    cells: list[Cell]
    mean_ns: float | None  # of the measured steps

    @property
    def was_last(self) -> bool:
        """Whether a cell of it is outlined."""
        return any(cell.is_last and cell.ns is not None for cell in self.cells)


def rows(waits: WaitMatrix, arrivals: ArrivalInfo, measured: Set[int]) -> list[WaitRow]:
    """Lay out waits by rank and step, neighbouring steps averaged down to MAX_COLUMNS."""
    chosen = [index for index, step in enumerate(waits.steps) if step in measured]
    width = -(-len(waits.steps) // MAX_COLUMNS) or 1
    bins = [waits.steps[i : i + width] for i in range(0, len(waits.steps), width)]
    labels = [str(b[0]) if len(b) == 1 else f"{b[0]}-{b[-1]}" for b in bins]
    lasts = [_last(arrivals, steps) for steps in bins]
    matrix = [
        [_mean(row[i : i + width]) for i in range(0, len(waits.steps), width)]
        for row in waits.exposed_ns[:MAX_RANKS]
    ]
    longest = max((ns for row in matrix for ns in row if ns is not None), default=0) or 1
    return [
        WaitRow(
            rank,
            [
                Cell(label, ns, (ns or 0) / longest, rank == last)
                for label, ns, last in zip(labels, row, lasts, strict=True)
            ],
            _mean([of_rank[index] for index in chosen]),
        )
        for rank, row, of_rank in zip(waits.ranks, matrix, waits.exposed_ns, strict=False)
    ]


def _last(arrivals: ArrivalInfo, steps: Sequence[int]) -> int | None:
    """Return the rank that came last in most of these steps."""
    ranks = [arrivals.last_ranks[str(step)] for step in steps if str(step) in arrivals.last_ranks]
    return Counter(ranks).most_common(1)[0][0] if ranks else None


def _mean(values: list[int]) -> float | None:
    known = [value for value in values if value >= 0]
    return sum(known) / len(known) if known else None
