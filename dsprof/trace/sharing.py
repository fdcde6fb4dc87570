"""What is equal on many ranks: a process that reads them holds it once, and sends it once."""

from __future__ import annotations

import pickle
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

_LARGEST_BYTES = 1 << 15
"""Larger columns are of runs with few ranks: to hold them once would cost more than it saves."""


def shared(value: T) -> T:
    """Return an equal value, the same one for equal values of further ranks: change none."""
    if isinstance(value, np.ndarray) and value.nbytes > _LARGEST_BYTES:
        return value
    return _held(pickle.dumps(value))  # type: ignore[no-any-return]


@lru_cache(256)
def _held(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301 - what `shared` made
