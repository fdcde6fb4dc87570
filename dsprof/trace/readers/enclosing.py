"""Which range is around each call of the host, on the thread that made it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_IntArray = npt.NDArray[np.int64]


def around(calls: _IntArray, ranges: _IntArray, *, outermost: bool) -> _IntArray:
    """Return the name of the outermost or innermost range around each call, 0 where none is.

    Calls have rows thread, start, end; ranges the same and, last, their names.
    """
    found = np.zeros(calls.shape[1], np.int64)
    for thread in np.unique(calls[0]):
        mine = np.flatnonzero(calls[0] == thread)
        mine = mine[np.argsort(calls[1, mine], kind="stable")]
        its = ranges[1:, ranges[0] == thread]
        first, last = np.searchsorted(calls[1, mine], its[:2])
        some = np.flatnonzero(last > first)
        lengths = its[1, some] - its[0, some]
        # The last to be written stays.
        order = some[np.argsort(lengths if outermost else -lengths, kind="stable")]
        names = its[2]
        for i, begin, end in zip(order, first[order], last[order], strict=True):
            found[mine[begin:end]] = names[i]
    return found


def outer(spans: _IntArray) -> _IntArray:
    """Return the ranges that lie in no other; rows are starts and ends."""
    order = np.lexsort((-spans[1], spans[0]))
    starts, ends = spans[:, order]
    reach = np.maximum.accumulate(ends)
    is_outer = np.ones(len(starts), np.bool_)
    is_outer[1:] = ends[1:] > reach[:-1]
    return spans[:, order[is_outer]]
