"""By how much a run is shorter without some of its collectives: most waits only move.

Of calls in a row on the same ranks, the rank that they block least in sum comes last to the end of
the row. Without some of them it still waits as long as the rest blocks it by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from dsprof.analysis.aggregates.arrivals import FAMILIES, Arrivals
from dsprof.analysis.alignment.matching import Matched
from dsprof.analysis.collectives import SIZE_CLASSES, SIZE_EDGES_BYTES
from dsprof.analysis.rank.intervals import Array
from dsprof.trace.columns import BoolArray


class Sized(NamedTuple):
    """Collectives of like size have this in common."""

    family: str
    group_size: int
    size_class: str


def saved_ns(
    arrivals: Arrivals, steps: Sequence[int], omitted: Collection[Sized], *, are_apart: bool
) -> float | None:
    """Return what each call of these kinds that is omitted saves, on average; None if not known.

    A row ends with the next call that is kept: there the ranks wait for what they did not wait for
    before. If `are_apart`, each call is a row, so only the time after the last arrival counts; and
    if there are other groups, as it is not known when their ranks wait there.
    """
    are_apart = are_apart or len(arrivals.matched) > 1
    calls, total_ns = 0, 0
    for one in arrivals.matched:
        for part in one.parts():
            some = part.in_steps(steps)
            if (gone := _are_of(some, omitted)).any():
                held_ns = (some.blocked_until.astype(np.int64) - some.blocked_from).clip(0)
                rows = np.arange(len(gone)) if are_apart else _rows(some.seq, gone)
                total_ns += int(np.add.reduceat(held_ns, rows, axis=1).min(axis=0).sum())
                total_ns -= int(held_ns[:, ~gone].min(axis=0).sum())
                calls += int(np.count_nonzero(gone))
    return total_ns / calls if calls else None


def _are_of(some: Matched, kinds: Collection[Sized]) -> BoolArray:
    gone = np.zeros(len(some.seq), np.bool_)
    sizes = np.searchsorted(SIZE_EDGES_BYTES, some.nbytes[0], "right")
    for kind in kinds:
        if kind.group_size == some.group.size and kind.size_class in SIZE_CLASSES:
            is_like = sizes == SIZE_CLASSES.index(kind.size_class)
            numbers = [number for number, name in enumerate(FAMILIES) if name == kind.family]
            gone |= is_like & np.isin(some.op[0], numbers)
    return gone


def _rows(seq: Array, gone: BoolArray) -> Array:
    """Return where rows of calls begin: after a call that is kept, or that was not recorded."""
    begins = ~gone[:-1] | (np.diff(seq) != 1)
    return np.concatenate([[0], np.flatnonzero(begins) + 1])
