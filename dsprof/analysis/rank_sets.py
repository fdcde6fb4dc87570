"""Sets of ranks, as the values of facts that many ranks share.

A set is an int in which bit r is rank r: a value shared by 8,000 ranks costs one kilobyte, and
joining two sets is one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from operator import or_

import numpy as np

from dsprof.findings.wording import listed, named

RankSet = int

_MOST_RANGES = 64
"""A cell of a table names at most this many ranges of ranks, and counts the other ranks."""


def rank_set(ranks: Iterable[int]) -> RankSet:
    """Return the set of these ranks."""
    return sum(1 << rank for rank in set(ranks))


def ranks_of(ranks: RankSet) -> tuple[int, ...]:
    """Return the ranks of a set in ascending order."""
    eights = np.frombuffer(ranks.to_bytes(ranks.bit_length() // 8 + 1, "little"), np.uint8)
    return tuple(np.flatnonzero(np.unpackbits(eights, bitorder="little")).tolist())


def written_ranks(ranks: RankSet) -> str:
    """Return a set of ranks as a cell of a table shows it: "0-3, 7", at most 64 ranges."""
    return listed(ranks_of(ranks), _MOST_RANGES)


def named_ranks(ranks: RankSet) -> str:
    """Return a set of ranks as part of a sentence: "rank 3", "ranks 0-3, 7"."""
    return named(ranks_of(ranks))


def standing_out(held: Mapping[str, RankSet], amount: Callable[[str], int] | None) -> RankSet:
    """Return the ranks with the least `amount`; without one those whose value is rarest, if any."""
    if amount is not None:
        least = min(map(amount, held))
        return union(ranks for value, ranks in held.items() if amount(value) == least)
    rarest, *others = sorted(held.values(), key=int.bit_count)
    return rarest if others and rarest.bit_count() < others[0].bit_count() else 0


def union(sets: Iterable[RankSet]) -> RankSet:
    """Return the ranks that are in any of `sets`."""
    return reduce(or_, sets, 0)


def in_several(sets: Iterable[RankSet]) -> RankSet:
    """Return the ranks that are in more than one of `sets`."""
    once = several = 0
    for ranks in sets:
        several |= once & ranks
        once |= ranks
    return several
