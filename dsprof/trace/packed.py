"""Values of many ranks, pickled and compressed: objects take several times the memory."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from io import BytesIO
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


class _Packs(Sequence[T]):
    """Values, packed; only the pack that was read last is unpacked."""

    def __init__(self, values: Sequence[T]) -> None:
        starts = range(0, len(values), PACKED_RANKS)
        self._packs = [Packed(values[at : at + PACKED_RANKS]) for at in starts]
        self._length = len(values)
        self._unpacked: tuple[int, Sequence[T]] = (-1, ())

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: Any) -> Any:
        number, unpacked = self._unpacked  # another thread may replace it
        wanted, at = divmod(range(self._length)[place], PACKED_RANKS)
        if number != wanted:
            unpacked = self._packs[wanted].unpacked()
            self._unpacked = wanted, unpacked
        return unpacked[at]


class OnDemand(Sequence[T]):
    """Values that are made when they are taken, and not kept; pickled, they are a tuple."""

    def __init__(self, make: Callable[[int], T], places: range) -> None:
        self._make, self._places = make, places

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (list(self),)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, place: Any) -> Any:
        chosen = self._places[place]
        return OnDemand(self._make, chosen) if isinstance(chosen, range) else self._make(chosen)


def packed(values: Iterable[T]) -> Sequence[T]:
    """Return the same values, packed where they are many: change none, and take no slice."""
    whole = tuple(values)
    return whole if len(whole) < PACKED_RANKS else _Packs(whole)
