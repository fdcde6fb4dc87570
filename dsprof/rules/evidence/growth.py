"""Whether memory that grows slows down, as a cache that fills up does and a leak does not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_SLOWER, _SLOW = 1.15, 0.75


def slows_down(rises: Sequence[float]) -> bool:
    """Say whether growth, as the rise in each of equal parts of a run, goes on but slows down.

    Then, as the square root of the steps does, it rises by less in each part than in the one
    before, and in the last by less than three quarters of its mean rise.
    """
    is_slower = all(before > _SLOWER * after for before, after in pairwise(rises))
    return is_slower and rises[-1] < _SLOW * sum(rises) / len(rises)
