"""Facts of each rank, compressed in packs of ranks."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from numbers import Integral
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from dsprof.trace.packed import PACKED_RANKS, Packed

T = TypeVar("T")


def _ascending(ranks: Iterable[int]) -> Sequence[int]:
    """Return ranks in order: where none is missing a range, which takes no memory for each."""
    column = array("q", ranks)
    np.frombuffer(column, np.int64).sort()
    whole = range(column[0], column[-1] + 1) if column else range(0)
    return whole if len(whole) == len(column) else column


def _holds(ranks: Sequence[int], rank: Any) -> bool:
    place = bisect_left(ranks, rank)
    return place < len(ranks) and ranks[place] == rank


class _Pack(Packed[Mapping[int, T]]):
    """Facts of some ranks."""

    def __init__(self, facts: Mapping[int, T]) -> None:
        super().__init__(facts)
        self.ranks = _ascending(facts)


class PerRank(Mapping[int, T]):
    """Facts by rank, ascending.

    Only the pack of the rank that was read last is unpacked. After `in_order`, reading all ranks in
    ascending order unpacks each pack once. Do not keep what you read: that is what packing saves.
    """

    def __init__(
        self, facts: Mapping[int, T] = MappingProxyType({}), packs: tuple[_Pack[T], ...] = ()
    ) -> None:
        if len(facts) >= PACKED_RANKS:
            facts, packs = {}, (*packs, _Pack(facts))
        self._facts, self._packs = dict(facts), packs
        self._unpacked: Mapping[int, T] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return PerRank, (self._facts, self._packs)

    def __or__(self, other: Mapping[int, T]) -> PerRank[T]:
        """Join the facts of two disjoint sets of ranks."""
        others = other if isinstance(other, PerRank) else PerRank(other)
        return PerRank({**self._facts, **others._facts}, self._packs + others._packs)

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ranks)

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, Integral) and _holds(self._ranks, rank)

    def __getitem__(self, rank: int) -> T:
        if rank in self._facts:
            return self._facts[rank]
        unpacked = self._unpacked  # another thread may replace it
        if rank not in unpacked:
            mine = (pack for pack in self._packs if _holds(pack.ranks, rank))
            if (pack := next(mine, None)) is None:
                raise KeyError(rank)
            unpacked = self._unpacked = pack.unpacked()
        return unpacked[rank]

    def in_order(self) -> PerRank[T]:
        """Return the same, repacked so that reading all ranks in order unpacks each pack once."""
        packs = sorted(self._packs, key=lambda pack: pack.ranks[0])
        furthest, mixed = packs[:1], set[_Pack[T]]()
        for pack in packs[1:]:
            if furthest[0].ranks[-1] > pack.ranks[0]:
                mixed |= {furthest[0], pack}
            furthest = [max(furthest[0], pack, key=lambda one: one.ranks[-1])]
        rows = iter(PerRank[T]({}, tuple(mixed)).items())
        ordered = PerRank(self._facts, tuple(pack for pack in packs if pack not in mixed))
        while part := dict(islice(rows, PACKED_RANKS)):
            ordered = PerRank(ordered._facts, (*ordered._packs, _Pack(part)))
        return ordered

    @cached_property
    def _ranks(self) -> Sequence[int]:
        return _ascending(chain(self._facts, *(pack.ranks for pack in self._packs)))
