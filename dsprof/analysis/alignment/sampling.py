"""The same sample of collectives on all ranks, whatever else each of them recorded."""

from __future__ import annotations

import numpy as np

from dsprof.analysis.rank.intervals import Array
from dsprof.trace.columns import IntArray

_MIX = 2_654_435_761  # Knuth's multiplicative hash


def sample(seq: IntArray, chosen: Array, most: int) -> tuple[Array, int]:
    """Return at most about `most` of the chosen rows, and one in how many that is.

    Chosen only by a hash of the number: all ranks choose the same, and no period of the program
    hides behind that of the sample.
    """
    stride = 1
    while len(chosen) > most * stride:
        stride *= 2
    mixed = (seq[chosen].astype(np.int64) * _MIX) & 0xFFFFFFFF
    return chosen[mixed < (1 << 32) // stride], stride
