"""Bounds on the offset between two hosts' clocks, from the collectives that both took part in.

No rank leaves a synchronising collective before every rank has entered it. With a the latest
arrival of a host and e the earliest end, each on its own clock, the offset o that must be added to
the other's times obeys

    a_one - e_other <= o <= e_one - a_other

Where a device ran it, ends of both differ by no more than the shortest call of any rank took, for
the last to arrive does not wait: a second bound, narrow although one host always comes last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dsprof.analysis.rank.intervals import Array
from dsprof.trace.columns import BoolArray

DRIFT_PER_NS = 10_000
"""Two clocks may run apart by one ns in so many; crystals do by one in some 100,000."""
_KNOTS = 17
_CHECKED = 4
"""The error is looked at in so many places between two knots."""
_PASSED_OVER = 100
"""The tightest of so many bounds is not believed: one damaged record must not move a clock."""
_NEIGHBOURS = 15
"""The ends of this many collectives around a moment say where the other clock is."""
_SHIFTS = 64
"""Windows of profilers that begin further apart, in collectives of a group, are not matched."""
_COMPARED = 1024
_BETTER = 2


@dataclass(frozen=True, slots=True)
class Seen:
    """Synchronising collectives of one group, on the clock of a host; ascending by number.

    Of several ranks the latest arrival and the earliest end; `shortest` is the shortest call of any
    rank. Its end lies in [earliest, latest], which for the host's own view is the whole call.
    """

    seq: Array
    arrive: Array
    earliest: Array
    latest: Array
    shortest: Array

    def __len__(self) -> int:
        return len(self.seq)

    def take(self, chosen: Array | BoolArray) -> Seen:
        """Return some of the collectives."""
        return Seen(*(getattr(self, name)[chosen] for name in self.__slots__))


def joined(parts: Sequence[Seen]) -> Seen:
    """Join what ranks of one clock saw."""
    columns = {name: np.concatenate([getattr(p, name) for p in parts]) for name in Seen.__slots__}
    order = np.argsort(columns["seq"], kind="stable")
    seq, first = np.unique(columns["seq"][order], return_index=True)
    least = np.minimum.reduceat if len(seq) else lambda values, _: values
    most = np.maximum.reduceat if len(seq) else lambda values, _: values
    return Seen(
        seq,
        most(columns["arrive"][order], first),
        least(columns["earliest"][order], first),
        least(columns["latest"][order], first),
        least(columns["shortest"][order], first),
    )


def renumbered(seen: Seen, like: Seen) -> Seen | None:
    """Give collectives the numbers that they have in `like`; None where times do not tell.

    A profiler counts from where its window begins. Times between ends are alike on all ranks,
    whatever their clocks: of all shifts one must fit far better than any other.
    """
    part = seen.take(np.arange(min(len(seen), _COMPARED)))
    misfits = {shift: _misfit(part, like, shift) for shift in range(-_SHIFTS, _SHIFTS + 1)}
    best, second = sorted(misfits, key=lambda shift: misfits[shift])[:2]
    if not _BETTER * misfits[best] < misfits[second]:
        return None
    return replace(seen, seq=seen.seq + best)


def _misfit(seen: Seen, like: Seen, shift: int) -> float:
    """Return by how much times between ends differ, mean in ns."""
    numbers = seen.seq + shift
    place = np.minimum(np.searchsorted(like.seq, numbers), len(like) - 1)
    here = np.flatnonzero(like.seq[place] == numbers)
    there = place[here]
    if len(here) < max(_NEIGHBOURS, min(len(seen), len(like)) // 2):
        return math.inf
    between = np.diff(seen.latest[here]) - np.diff(like.latest[there])
    return float(np.abs(between).mean())


class Bounds(NamedTuple):
    """One row per collective: its bounds on the offset, and when, by the other host's clock."""

    at: Array
    low: Array
    high: Array
    end_low: Array  # the same from the ends only
    end_high: Array


def bounds(one: Seen, other: Seen, shortest: Array) -> Bounds:
    """Return what matched collectives say; `shortest` is the least of all hosts."""
    return Bounds(
        at=other.latest,
        low=one.arrive - other.latest,
        high=one.latest - other.arrive,
        end_low=one.earliest - other.latest - shortest,
        end_high=one.latest - other.earliest + shortest,
    )


class Tie(NamedTuple):
    """Corrections of a clock at some of its times, straight in between; and the error at most."""

    at: Array
    offset: Array
    bound_ns: int


def tie(found: Bounds) -> Tie:
    """Return the middle of what at least one collective leaves possible.

    Bounds widen with the time from their collective, as far as clocks may run apart. Where they
    contradict each other, clocks ran apart faster: then all that either allows is left open.
    """
    count = _KNOTS if len(found.at) > 1 else 1
    grid = np.linspace(found.at.min(), found.at.max(), (count - 1) * _CHECKED + 1).astype(np.int64)
    low, high = _possible(found, grid)
    middle = (low + high) // 2
    knots, offset = grid[::_CHECKED], middle[::_CHECKED]
    base = int(offset[0])
    between = np.interp(grid, knots, offset - base).astype(np.int64) + base
    error = np.maximum(np.abs(high - between), np.abs(between - low))
    # Where the offset moved further than clocks may drift, the moment between two is unknown.
    jumps = np.abs(np.diff(middle)) - np.diff(grid) // DRIFT_PER_NS
    return Tie(knots, offset, int(error.max() + jumps.max(initial=0)))


def _possible(found: Bounds, grid: Array) -> tuple[Array, Array]:
    """Return between what the offset lies at each moment of the grid."""
    away = np.abs(grid[:, None] - found.at[None, :])
    slack = away // DRIFT_PER_NS
    spare = len(found.at) // _PASSED_OVER
    lows, highs, rows = found.low - slack, found.high + slack, np.arange(len(grid))
    lowest = np.argpartition(highs, spare, axis=1)[:, spare]
    highest = np.argpartition(-lows, spare, axis=1)[:, spare]
    low, high = lows[rows, highest], highs[rows, lowest]
    apart = low > high
    low, high = (
        np.where(apart, lows[rows, lowest], low),
        np.where(apart, highs[rows, highest], high),
    )
    if len(found.at) < _NEIGHBOURS:
        return low, high
    near = np.argpartition(away, _NEIGHBOURS - 1, axis=1)[:, :_NEIGHBOURS]
    widen = np.take_along_axis(slack, near, axis=1)
    end_low = np.median(found.end_low[near] - widen, axis=1).astype(np.int64)
    end_high = np.median(found.end_high[near] + widen, axis=1).astype(np.int64)
    narrow_low, narrow_high = np.maximum(low, end_low), np.minimum(high, end_high)
    agree = narrow_low <= narrow_high
    return np.where(agree, narrow_low, low), np.where(agree, narrow_high, high)
