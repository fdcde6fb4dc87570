"""What is equal on many ranks: a process that reads them holds it once, and sends it once."""

from __future__ import annotations

import pickle
from functools import lru_cache
from typing import Any, TypeVar

T = TypeVar("T")


def shared(value: T) -> T:
    """Return an equal value, the same one for equal values of further ranks: change none."""
    return _held(pickle.dumps(value))  # type: ignore[no-any-return]


@lru_cache(256)
def _held(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301 - what `shared` made
