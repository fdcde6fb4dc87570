"""Has malloc keep the memory of freed arrays for the next ones.

The kernel clears each page that it hands out again: for columns that come and go that takes a tenth
of the time of a report, and half of the reading where Dask has each page returned at once.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

import numpy as np

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h numbers them
_TRIM_VARIABLE = "MALLOC_TRIM_THRESHOLD_"
"""Set by Dask, also for what else its process starts; ends malloc's own adaption of thresholds."""

_MMAP_BYTES = 1 << 17  # glibc's default
_KEPT_BYTES = 1 << 28
_LARGEST_MMAP_BYTES = 1 << 25  # more is refused
_LARGEST_KEPT_BYTES = 31 << 20  # glibc maps what is larger than 32 MiB each time


@cache
def keep_large_arrays() -> None:
    """Raise glibc's own thresholds, once in a process.

    It maps a large array by itself, as long as none of that size was freed, and returns what is
    free beyond twice the largest one.
    """
    with suppress(MemoryError):  # reading may take less
        np.empty(_LARGEST_KEPT_BYTES, np.uint8)


def keep_freed_memory() -> int | None:
    """Keep up to 256 MiB that are freed, if Dask set thresholds; return what it set, in bytes."""
    trimmed = os.environ.get(_TRIM_VARIABLE, "")
    if not trimmed.isdecimal():
        return None
    _set(_KEPT_BYTES, _LARGEST_MMAP_BYTES)
    return int(trimmed)


@contextmanager
def kept_freed_memory() -> Iterator[None]:
    """As `keep_freed_memory`, until the context ends."""
    trimmed_bytes = keep_freed_memory()
    try:
        yield
    finally:
        if trimmed_bytes is not None:
            _set(trimmed_bytes, _MMAP_BYTES)


def _set(trim_bytes: int, mmap_bytes: int) -> None:
    with suppress(AttributeError, OSError, ctypes.ArgumentError):  # another malloc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, trim_bytes)
        mallopt(_MMAP_THRESHOLD, mmap_bytes)
