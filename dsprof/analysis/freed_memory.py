"""Lets malloc keep what is freed where Dask has told it to give that back at once.

The kernel clears each page that it hands out again: for columns that come and go that takes as long
as half of the reading.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h numbers them
_TRIM_VARIABLE = "MALLOC_TRIM_THRESHOLD_"
"""Set by Dask's nannies; it also ends malloc's own adaption of both thresholds."""

_MMAP_BYTES = 1 << 17  # glibc's default
_KEPT_BYTES = 1 << 28
_LARGEST_MMAP_BYTES = 1 << 25  # more is refused


@contextmanager
def kept_freed_memory() -> Iterator[None]:
    """Keep up to 256 MiB that are freed meanwhile, for the next allocation."""
    trimmed = os.environ.get(_TRIM_VARIABLE, "")
    if not trimmed.isdecimal():
        yield
        return
    _set(_KEPT_BYTES, _LARGEST_MMAP_BYTES)
    try:
        yield
    finally:
        _set(int(trimmed), _MMAP_BYTES)


def _set(trim_bytes: int, mmap_bytes: int) -> None:
    with suppress(AttributeError, OSError, ctypes.ArgumentError):  # another malloc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, trim_bytes)
        mallopt(_MMAP_THRESHOLD, mmap_bytes)
