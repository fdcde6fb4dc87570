"""Facts of each rank, compressed in packs of ranks: objects take several times the memory."""

from __future__ import annotations

import pickle
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, cached_property
from io import BytesIO
from itertools import islice
from numbers import Integral
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import numpy as np

from dsprof.trace.columns import IntArray

T = TypeVar("T")

PACKED_RANKS = 64
"""Ranks in a pack."""

_FASTEST = 1  # level of zlib; higher ones hardly make times in ns smaller


class _Pickler(pickle.Pickler):
    """Pickles what facts are made of so that it takes less memory, and less time to unpickle."""

    def reducer_override(self, value: Any) -> Any:
        """Return how a column or a dataclass is made again; all else is pickled as usual."""
        kind: Any = type(value)
        if kind is np.ndarray and value.dtype == np.int64 and value.ndim == 1:
            # The lowest bytes first: the high ones of neighbours are mostly equal.
            bytes_of = np.ascontiguousarray(value).view(np.uint8).reshape(-1, 8)
            return _column, (bytes_of.T.tobytes(),)
        if _is_made_of_fields(kind):
            return kind, tuple(getattr(value, one.name) for one in fields(kind))
        return NotImplemented


def _column(data: bytes) -> IntArray:
    column: IntArray = np.frombuffer(data, np.uint8).reshape(8, -1).T.copy().view(np.int64).ravel()
    return column


@cache
def _is_made_of_fields(kind: Any) -> bool:
    """Whether a dataclass holds its fields only, and `kind(*values)` sets all of them."""
    held = fields(kind) if is_dataclass(kind) and hasattr(kind, "__slots__") else ()
    is_plain = all(one.init and not one.kw_only for one in held)
    return bool(held) and is_plain and not hasattr(kind, "__post_init__")


class Packed(Generic[T]):
    """A value, pickled and compressed."""

    def __init__(self, value: T) -> None:
        file = BytesIO()
        _Pickler(file).dump(value)
        self._data = zlib.compress(file.getbuffer(), _FASTEST)

    def unpacked(self) -> T:
        """Return an equal value, a new one each time."""
        return pickle.loads(zlib.decompress(self._data))  # type: ignore[no-any-return] # noqa: S301 - made above


class _Pack(Packed[Mapping[int, T]]):
    """Facts of some ranks."""

    def __init__(self, facts: Mapping[int, T]) -> None:
        super().__init__(facts)
        self.ranks = array("q", sorted(facts))


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
        return isinstance(rank, Integral) and self._place(int(rank)) is not None

    def __getitem__(self, rank: int) -> T:
        if rank in self._facts:
            return self._facts[rank]
        unpacked = self._unpacked  # another thread may replace it
        if rank not in unpacked:
            if (place := self._place(rank)) is None:
                raise KeyError(rank)
            unpacked = self._unpacked = self._packs[self._pack_of[place]].unpacked()
        return unpacked[rank]

    def in_order(self) -> PerRank[T]:
        """Return the same, repacked so that reading all ranks in order unpacks each pack once."""
        packs = sorted(self._packs, key=lambda pack: pack.ranks)
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

    def _place(self, rank: int) -> int | None:
        place = bisect_left(self._ranks, rank)
        return place if place < len(self._ranks) and self._ranks[place] == rank else None

    @cached_property
    def _ranks(self) -> array[int]:
        return array("q", sorted([*self._facts, *(r for pack in self._packs for r in pack.ranks)]))

    @cached_property
    def _pack_of(self) -> array[int]:
        """The index of the pack of each rank; 0 also for ranks that are not packed."""
        places = {rank: place for place, pack in enumerate(self._packs) for rank in pack.ranks}
        return array("q", (places.get(rank, 0) for rank in self._ranks))
