"""Steps of ranks as rows, and the means over the ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from dsprof.trace.columns import BoolArray, IntArray
from dsprof.trace.sharing import shared

_ALIKE = ("number", "micro_steps", "counted", "calls", "nbytes", "unsized", "forwards", "profiled")
"""What all ranks of a synchronous run have in common."""
_OF_RANKS = ("exposed_ns", "compute_ns", "copies_ns", "nbytes", "forwards", "idle_ns")


@dataclass(frozen=True, slots=True)
class RankSteps:
    """Columns, one row per kept step of one rank, by step number; None: not measurable here."""

    number: IntArray
    micro_steps: IntArray
    total_ns: IntArray
    exposed_ns: IntArray | None
    compute_ns: IntArray | None  # 0 in counted steps, which do not show it
    copies_ns: IntArray | None  # of the time not exposed; None without a copy; 0 in counted steps
    counted: BoolArray  # steps that are not in full detail
    calls: IntArray  # collectives on the wire, counted ones included
    nbytes: IntArray  # of these
    unsized: IntArray  # of these, those whose size is not known
    forwards: IntArray  # an evaluation between two steps is of the later one; 0 in counted steps
    unwaited: int  # collectives of measured steps of which not even the wait was seen
    estimated_ns: int  # waits of measured steps that were in C++: an upper bound
    on_device: bool  # exposed is of the device's clock, so not known in counted steps
    idle_ns: IntArray | None  # of the device
    profiled: BoolArray | None  # only these steps show compute, copies and idle; None: all
    by_kernels: bool  # all parts are those of kernels
    recorded: int  # steps, of which these are a sample
    strides: tuple[int, int]  # one in how many: of those in full detail, of the counted ones
    newest_from: int  # of a rolling recording: from here on none is left out
    measured: int  # of all its steps, those that sums of collectives take

    @property
    def all_ns(self) -> int:
        """Time of all steps, as far as the kept ones tell."""
        kept = max(len(self.number), 1)
        return int(self.total_ns.sum()) * max(self.recorded, kept) // kept

    def of(self, numbers: IntArray) -> RankSteps:
        """Return some of the steps."""
        if np.array_equal(self.number, numbers):
            return self
        chosen = np.isin(self.number, numbers)
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        columns: dict[str, Any] = {
            name: value[chosen] for name, value in values.items() if isinstance(value, np.ndarray)
        }
        return replace(self, **columns)

    def sharing(self) -> RankSteps:
        """Return the same, with what other ranks have, too, held once."""
        if not len(self.number):
            return shared(self)
        return replace(self, **{name: shared(getattr(self, name)) for name in _ALIKE})

    @property
    def hidden(self) -> BoolArray:
        """Steps that do not show compute, copies and idle."""
        return self.counted if self.profiled is None else self.counted | ~self.profiled


class SameSteps(Mapping[int, RankSteps]):
    """Some ranks, each with the same steps only. Their rows are made when they are read."""

    def __init__(
        self, rows: Mapping[int, RankSteps], ranks: Sequence[int], numbers: IntArray
    ) -> None:
        """Choose ranks, ascending, and steps that each of them has."""
        self._rows, self._ranks, self._numbers = rows, dict.fromkeys(ranks), numbers

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranks)

    def __getitem__(self, rank: int) -> RankSteps:
        if rank not in self._ranks:
            raise KeyError(rank)
        row = self._rows[rank]
        same = row.of(self._numbers)
        left_out = len(row.number) - len(same.number)
        return replace(same, recorded=row.recorded - left_out) if left_out else row


@dataclass(frozen=True, slots=True)
class Parts:
    """Mean over ranks of one step, or the sum of these means over several; the parts add up."""

    total_ns: int
    exposed_ns: int | None
    compute_ns: int | None
    copies_ns: int | None
    micro_steps: int
    slowest_rank: int
    fastest_ns: int
    slowest_ns: int
    calls: int  # collectives on the wire of one rank
    nbytes: int | None  # of these; None where the size of one is not known
    forwards: int | None = None  # of the rank with most; counted steps do not show them
    idle_ns: int | None = None
    ranks: int = 0  # that recorded this step; 0 in a sum

    @property
    def other_ns(self) -> int:
        """Time that is in no other part."""
        known = (self.exposed_ns, self.compute_ns, self.copies_ns, self.idle_ns)
        return self.total_ns - sum(part or 0 for part in known)


def means(ranks: Mapping[int, RankSteps], number: IntArray) -> dict[int, Parts]:
    """Return each of these steps (ascending), as the mean over the ranks that have it."""
    sums = _Sums(number)
    for rank in sorted(ranks):
        sums.add(rank, ranks[rank])
    return sums.parts()


class _Sums:
    """Sums of steps over ranks, in columns; the mean of a part is None where a rank lacks it."""

    def __init__(self, number: IntArray) -> None:
        self._number = number
        self._ranks, self._total, self._slowest_rank, self._micro, self._calls = (
            np.zeros(len(number), np.int64) for _ in range(5)
        )
        limits = np.iinfo(np.int64)
        self._fastest, self._slowest = (np.full(len(number), n) for n in (limits.max, limits.min))
        self._sums = {name: np.zeros(len(number), np.int64) for name in _OF_RANKS}
        self._known = {name: np.zeros(len(number), np.int64) for name in _OF_RANKS}

    def add(self, rank: int, row: RankSteps) -> None:
        """Add the steps of a rank; of equally slow ones the first stays the slowest."""
        place = np.searchsorted(self._number, row.number)
        self._ranks[place] += 1
        self._total[place] += row.total_ns
        self._calls[place] += row.calls
        self._micro[place] = np.maximum(self._micro[place], row.micro_steps)
        self._fastest[place] = np.minimum(self._fastest[place], row.total_ns)
        slower = place[row.total_ns > self._slowest[place]]
        self._slowest_rank[slower] = rank
        self._slowest[place] = np.maximum(self._slowest[place], row.total_ns)
        for name, (column, is_shown) in _shown(row).items():
            if column is not None:
                join = np.maximum if name == "forwards" else np.add
                at = place[is_shown]
                self._sums[name][at] = join(self._sums[name][at], column[is_shown])
                self._known[name][at] += 1

    def parts(self) -> dict[int, Parts]:
        """Return the mean of each step."""
        count = np.maximum(self._ranks, 1)
        columns: dict[str, list[Any]] = {name: self._of(name, count) for name in _OF_RANKS}
        numbers = {
            "total_ns": self._total // count,
            "micro_steps": self._micro,
            "slowest_rank": self._slowest_rank,
            "fastest_ns": self._fastest,
            "slowest_ns": self._slowest,
            "calls": self._calls // count,
            "ranks": self._ranks,
        }
        columns |= {name: column.tolist() for name, column in numbers.items()}
        rows = zip(self._number.tolist(), *columns.values(), strict=True)
        return {number: Parts(**dict(zip(columns, row, strict=True))) for number, *row in rows}

    def _of(self, name: str, count: IntArray) -> list[int | None]:
        """Return the value of each step; the most forwards of a rank, else a mean."""
        values = self._sums[name] if name == "forwards" else self._sums[name] // count
        is_known = self._known[name] == self._ranks
        pairs = zip(values.tolist(), is_known.tolist(), strict=True)
        return [value if known else None for value, known in pairs]


def _shown(row: RankSteps) -> dict[str, tuple[IntArray | None, BoolArray]]:
    """Return the parts of steps, and in which steps they are shown.

    The host's counters say nothing of a device.
    """
    on_host = ~row.counted if row.on_device else np.ones(len(row.number), np.bool_)
    return {
        "exposed_ns": (row.exposed_ns, on_host),
        "compute_ns": (row.compute_ns, ~row.hidden),
        "copies_ns": (row.copies_ns, ~row.hidden),
        "nbytes": (row.nbytes, row.unsized == 0),
        "forwards": (row.forwards, ~row.counted),
        "idle_ns": (row.idle_ns, ~row.hidden),
    }
