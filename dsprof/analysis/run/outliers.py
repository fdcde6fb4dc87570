"""Which of a few numbers is an outlier, and whether that is more than chance."""

from __future__ import annotations

import math

import numpy as np

from dsprof.analysis.rank.intervals import Array
from dsprof.analysis.run.series import sigma
from dsprof.trace.columns import BoolArray

_DIXON_99 = (
    0.994, 0.926, 0.821, 0.740, 0.680, 0.634, 0.598,
    0.568, 0.542, 0.522, 0.503, 0.488, 0.475, 0.463,
    0.452, 0.442, 0.433, 0.425, 0.418, 0.411, 0.404,
    0.399, 0.393, 0.388, 0.384, 0.380, 0.376, 0.372,
)  # fmt: skip
"""Critical values of Dixon's r10 for 3 to 30 numbers, two-sided, 99 %.

Source: Rorabacher, Analytical Chemistry 63 (1991), 139-146, table 1.
"""
_SIGMAS = 3.0


def low_outliers(values: Array, least_gap: float, doubt: int = 0, most: float = 1.0) -> BoolArray:
    """Say which of `values` are far below the others: a mask of the same length.

    Two numbers: the lower one. 3 to 30: the lowest, by Dixon's test (99 %). More: all that are
    more than 3 sigma below the median, with sigma from the median absolute deviation, so that the
    outliers themselves do not widen it. What is less than `least_gap` below the median of the
    others is none. The others are not set apart by differences up to `doubt`. `most` bounds the
    critical value of Dixon's test: it asks three or four numbers to agree to 0.6 or 8 % of the gap.
    """
    count = len(values)
    found = np.zeros(count, np.bool_)
    if count < 2:
        return found
    lowest = int(np.argmin(values))
    rest = np.delete(values, lowest)
    if float(np.median(rest)) - values[lowest] < max(least_gap, 1):
        return found
    if count == 2:
        found[lowest] = True
    elif count <= len(_DIXON_99) + 2:
        gap = int(rest.min()) - int(values[lowest])
        reach = max(int(values.max()) - int(values[lowest]) - doubt, gap)
        found[lowest] = gap > min(_DIXON_99[count - 3], most) * reach
    else:
        middle = float(np.median(values))
        found = values < middle - max(_SIGMAS * sigma(values), least_gap)
    return found


def chance_of(votes: int, of: int, candidates: int) -> float:
    """Return how likely any of `candidates` gets that many votes if each vote falls by chance.

    The upper tail of the binomial distribution with p = 1 / candidates, times their number; at
    most 1.
    """
    if candidates < 2 or votes <= 0:
        return 1.0
    hit, miss = -math.log(candidates), math.log1p(-1 / candidates)
    tail = math.fsum(
        math.exp(_log_choose(of, k) + k * hit + (of - k) * miss) for k in range(votes, of + 1)
    )
    return min(1.0, candidates * tail)


def alike_in_a_row(series: BoolArray) -> float:
    """Return in how many neighbours of a series one is independent: 1 or more.

    (1 + r) / (1 - r) of the autocorrelation r of neighbours, which short series underestimate by
    (1 + 3 r) / n. Source: Kendall, Biometrika 41 (1954), 403-404.
    """
    apart = series - series.mean() if len(series) else np.zeros(0)
    square = float((apart * apart).sum())
    if not square:
        return 1.0
    r = float((apart[1:] * apart[:-1]).sum()) / square
    r = min(r + (1 + 3 * r) / len(series), 1 - 2 / len(series))
    return (1 + r) / (1 - r) if r > 0 else 1.0


def _log_choose(of: int, count: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(count + 1) - math.lgamma(of - count + 1)
