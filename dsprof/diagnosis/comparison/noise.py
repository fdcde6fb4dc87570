"""Whether two runs differ in time by more than their own noise."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median, variance
from typing import NamedTuple

BATCHES = 4
LEAST_STEPS = 2 * BATCHES
CONFIDENCE = "99 %"
_STUDENT = 5.841
"""Quantile of Student's t at 99.5 % for `BATCHES` - 1 degrees of freedom: two-sided 99 %, and
cautious, for Welch's test would allow up to twice as many degrees."""


class Interval(NamedTuple):
    """Where a difference lies, with 99 % confidence."""

    low: float
    high: float


def difference(before: Sequence[float], after: Sequence[float]) -> Interval | None:
    """Return where the median of `after` less that of `before` lies; None for too few samples.

    Samples are in the order of time. Steps that follow each other are alike, so their spread says
    too little of the noise: each run is cut into `BATCHES` parts, and the spread of the medians of
    these parts counts (the method of batch means, as in the analysis of simulations).
    """
    if min(len(before), len(after)) < LEAST_STEPS:
        return None
    middle = median(after) - median(before)
    reach = _STUDENT * (_squared_error(before) + _squared_error(after)) ** 0.5
    return Interval(middle - reach, middle + reach)


def _squared_error(samples: Sequence[float]) -> float:
    """Return the squared standard error of the median of `samples`."""
    edges = [len(samples) * number // BATCHES for number in range(BATCHES + 1)]
    medians = [median(samples[a:b]) for a, b in pairwise(edges)]
    return variance(medians) / BATCHES
