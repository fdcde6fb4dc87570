"""The known name that an unknown one resembles, if it looks like a typing error."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt

_BINS = 64  # tells A-Z and _ apart, and a-z from most digits


class NearNames:
    """Known names, to be asked for the nearest of thousands of unknown ones.

    difflib compares letter by letter. Only names that have enough letters in common with the
    unknown one, in whatever order, can be near: no other is compared.
    """

    def __init__(self, known: Iterable[str]) -> None:
        self._known = sorted(known)
        self._letters = np.array([_letters(name) for name in self._known]).reshape(-1, _BINS)
        self._lengths = np.array([len(name) for name in self._known])

    def nearest(self, name: str, similarity: float) -> str:
        """Return the name with the highest difflib ratio; "" if all are below `similarity`."""
        common = np.minimum(self._letters, _letters(name)).sum(axis=1)
        may_be = 2 * common >= similarity * (self._lengths + len(name)) - 1e-9
        compared = [self._known[i] for i in np.flatnonzero(may_be)]
        return next(iter(get_close_matches(name, compared, n=1, cutoff=similarity)), "")


def _letters(name: str) -> npt.NDArray[np.int32]:
    """Return how often each letter occurs in a name; letters that share a bin count as one."""
    codes = np.frombuffer(name.encode("utf-32-le", "surrogatepass"), np.uint32)
    return np.bincount(codes % _BINS, minlength=_BINS).astype(np.int32)
