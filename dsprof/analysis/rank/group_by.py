"""Group-by for columns of small integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dsprof.analysis.rank.intervals import Array, Intervals
from dsprof.trace.columns import BoolArray, IntArray

_LARGEST = 1 << 62


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows that agree in all columns: row i is in group `of_row[i]`; `first[g]` is a row of g."""

    of_row: npt.NDArray[np.intp]
    first: npt.NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.first)

    def counts(self) -> Array:
        """Return the number of rows of each group."""
        return np.bincount(self.of_row, minlength=len(self)).astype(np.int64)

    def sums(self, values: IntArray | BoolArray) -> Array:
        """Return the sum of `values` over the rows of each group, exact up to 2**53.

        Sums beyond 2**62, of numbers that no run can have, are given as 2**62.
        """
        totals = np.bincount(self.of_row, values, minlength=len(self))
        return np.clip(totals, -_LARGEST, _LARGEST).astype(np.int64)

    def unions(self, starts: Array, ends: Array) -> Array:
        """Return the length of the union of the intervals of each group, in ns.

        `starts` and `ends` have one element a row.
        """
        # Small integers are sorted by radix, ten times faster.
        order = np.argsort(self.of_row.astype(np.min_scalar_type(len(self))), kind="stable")
        rows_of = np.split(order, np.cumsum(self.counts())[:-1])
        lengths = [Intervals.union(starts[rows], ends[rows]).length_ns for rows in rows_of]
        return np.array(lengths, np.int64)


def group_rows(columns: Sequence[IntArray | BoolArray]) -> Groups:
    """Group rows by the values of `columns`: at least one, all of the same length."""
    key, radix = _digits(columns[0])
    for column in columns[1:]:
        digits, base = _digits(column)
        if radix * base > _LARGEST:
            _, key = np.unique(key, return_inverse=True)
            radix = int(key.max(initial=0)) + 1
        key = key * base + digits
        radix *= base
    if radix <= len(key):
        return _by_table(key, radix)
    _, first, of_row = np.unique(key, return_index=True, return_inverse=True)
    return Groups(of_row.reshape(-1), first)


def _by_table(key: Array, radix: int) -> Groups:
    """Group as `np.unique` does, without sorting: the keys are few."""
    first_of = np.full(radix, -1, np.intp)
    first_of[key[::-1]] = np.arange(len(key) - 1, -1, -1)
    is_used = first_of >= 0
    return Groups((np.cumsum(is_used) - 1)[key], first_of[is_used])


def _digits(column: IntArray | BoolArray) -> tuple[Array, int]:
    """Return the column from 0 upwards, and the number of values it may take.

    That number, times the number of rows, is at most `_LARGEST`.
    """
    values = column.astype(np.int64)
    if not len(values):
        return values, 1
    low, high = int(values.min()), int(values.max())
    if high - low >= _LARGEST // len(values):
        distinct, digits = np.unique(values, return_inverse=True)
        return digits.reshape(-1), len(distinct)
    return values - low, high - low + 1
