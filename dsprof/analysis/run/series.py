"""Changes within a run: drift, periodic slow steps, the step of a sudden change.

Functions of a column of step times. Medians and ranks throughout, so that a few wild steps decide
nothing; effects are measured against the scatter that is left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dsprof.trace.columns import BoolArray, IntArray

Floats = npt.NDArray[np.float64]

_MAD_TO_SIGMA = 1.4826
_BASELINE = 21  # steps in the running median
_SPELL = 9  # steps around each, of which most are in a stretch
_LEAST_SLOW = 11  # steps in all stretches
_USUAL = 25  # percentile: as much of the column may be slow as three quarters
_BINS = 300
_ON_GRID = 0.8
_LEAST_PERIOD = 3
_SETTLED = 0.1
_RUNS = 1000  # times less likely than by Pettitt's test


@dataclass(frozen=True, slots=True)
class Period:
    """Slow steps at `first`, `first + period`...; places in the column."""

    period: int
    first: int
    places: tuple[int, ...]

    def mask(self, column: BoolArray) -> BoolArray:
        """Say which places of a column are on it."""
        return np.isin(np.arange(len(column)), self.places)


class Spells(NamedTuple):
    """Slower stretches, and which times are in none of them, nor in a slow start."""

    slow: Sequence[slice]
    is_usual: BoolArray


@dataclass(frozen=True, slots=True)
class Change:
    """From place `at` on the level is another; `p` is the chance of it in a steady run."""

    at: int
    before: float
    after: float
    scatter: float  # sigma of what is left
    p: float

    @classmethod
    def to_spells(cls, times: Floats, spells: Sequence[slice], is_usual: BoolArray) -> Change:
        """Return the change to slower stretches that chance does not make."""
        inside = within(spells, len(times))
        usual, slow = float(np.median(times[is_usual])), float(np.median(times[inside]))
        left = np.concatenate([times[is_usual] - usual, times[inside] - slow])
        return cls(spells[0].start, usual, slow, sigma(left), p=0.0)


@dataclass(frozen=True, slots=True)
class Drift:
    """A straight line through the column; `z` of Mann and Kendall's test."""

    start: float
    end: float
    scatter: float
    z: float


def slow_places(times: Floats, share: float) -> BoolArray:
    """Say which times are above the running median by 5 sigma and by `share` of the median."""
    above = times - running_median(times, _BASELINE)
    least = max(5 * sigma(above), share * float(np.median(times)) if len(times) else 0.0)
    return np.asarray(above > least, np.bool_)


def costly_places(slow: BoolArray, times: Floats) -> BoolArray:
    """Say which slow places cost most: the others are noise beside them.

    From the longest excess on, half of the lost time is reached at some excess; half of it counts.
    """
    if not slow.any():
        return slow
    above = np.where(slow, times - float(np.median(times[~slow])), 0.0)
    falling = np.sort(above)[::-1]
    level = falling[np.searchsorted(np.cumsum(falling), falling.sum() / 2)]
    return np.asarray(slow & (above >= level / 2), np.bool_)


def periods_of(slow: BoolArray, times: Floats) -> list[Period]:
    """Return the periods of slow places, the costliest first; each is sought beside the others.

    One that only follows another by a place, or precedes it, is a delay that reaches so far. Where
    two meet, the time that one leaves is that of the other.
    """
    found: list[Period] = []
    rest, is_open = slow.copy(), np.ones(len(slow), np.bool_)
    while period := period_of(costly_places(rest, times), is_open) or period_of(rest, is_open):
        apart = [period.first - one.first for one in found if one.period == period.period]
        if not any(abs(places) % period.period in (1, period.period - 1) for places in apart):
            found.append(period)
        grid = np.zeros(len(slow), np.bool_)
        grid[period.first :: period.period] = True
        usual = float(np.median(times[~slow]))
        others = times[rest & ~grid]
        excess = float(np.median(others)) - usual if len(others) else 0.0
        times = np.where(grid, times - np.median(times[[*period.places]]) + usual, times)
        # Where times drift, the others may be below the usual time: then none leaves any.
        is_open &= ~grid | ((excess > 0) & (times - usual >= excess / 2))
        rest &= is_open
    return found


def period_of(slow: BoolArray, is_open: BoolArray) -> Period | None:
    """Return the period of at least three slow places; None if they have none.

    Four fifths of them lie on a grid, and four fifths of the grid from the first on are slow, as
    far as they are open.
    """
    places = np.flatnonzero(slow)
    if len(places) < 3:
        return None
    period = int(np.median(np.diff(places)))
    if period < _LEAST_PERIOD:
        return None
    phases, counts = np.unique(places % period, return_counts=True)
    phase = int(phases[np.argmax(counts)])
    on_grid = places[places % period == phase]
    grid = np.arange(on_grid[0], len(slow), period)
    expected = np.count_nonzero(is_open[grid])
    if len(on_grid) < max(3, _ON_GRID * len(places)) or len(on_grid) < _ON_GRID * expected:
        return None
    return Period(period, int(on_grid[0]), tuple(on_grid.tolist()))


def change_of(times: Floats) -> Change | None:
    """Return where the level changes most, by Pettitt's test; None for fewer than 4 times.

    The test says that it changes; the place is where the two levels leave least. Near an end the
    test is blind, and few runs of high and low times say so: they must be far less likely, for
    neighbours are alike without a change, too.

    U_t = 2 sum of the first t ranks - t (n + 1), K = max |U|, p = 2 exp(-6 K^2 / (n^3 + n^2)).
    Source: Pettitt, Applied Statistics 28 (1979), 126-135.
    """
    count = len(times)
    if count < 4:
        return None
    ranks = _ranks(times)
    u = 2 * np.cumsum(ranks)[:-1] - np.arange(1, count) * (count + 1)
    at = int(np.argmax(np.abs(u))) + 1
    p = min(1.0, 2 * math.exp(-6 * float(np.abs(u).max()) ** 2 / (count**3 + count**2)))
    apart = [np.abs(times - np.median(side)) for side in (times[:at], times[at:])]
    at = int(np.argmin(np.cumsum(apart[0] - apart[1])[:-1])) + 1
    before, after = float(np.median(times[:at])), float(np.median(times[at:]))
    left = np.concatenate([times[:at] - before, times[at:] - after])
    p = min(p, _RUNS * chance_of_runs(times > (before + after) / 2))
    return Change(at, before, after, sigma(left), p)


def spells_of(times: Floats, share: float, chance: float) -> Spells:
    """Return the stretches that are slower by `share`, if not only one without begin or end.

    A test for one change is blind to them where most of the column has the same level. They last
    for 5 times or more, and for 11 in sum, with as many times outside. Slow and other times that
    change places as often by `chance` are none: the runs test of Wald and Wolfowitz. A slow start
    is counted with the others, but is none of them.
    """
    none = Spells((), np.ones(len(times), np.bool_))
    if len(times) < 2 * _LEAST_SLOW:
        return none
    found = stretches(times > (1 + share) * float(np.percentile(times, _USUAL)))
    slow = [one for one in found if one.start and (len(found) > 1 or one.stop < len(times))]
    is_inside = within(found, len(times))
    if not slow or min(np.count_nonzero(is_inside), np.count_nonzero(~is_inside)) < _LEAST_SLOW:
        return none
    middle = float(np.median(times[is_inside]) + np.median(times[~is_inside])) / 2
    return Spells(slow, ~is_inside) if chance_of_runs(times > middle) <= chance else none


def stretches(is_in: BoolArray) -> list[slice]:
    """Return the stretches of 5 places or more of which most are set, the first and last, too."""
    window, half = np.ones(_SPELL, np.int64), _SPELL // 2  # at an end the window is cut
    inside, outside = (np.convolve(one, window)[half:][: len(one)] for one in (is_in, ~is_in))
    are_most = np.concatenate([[False], inside > outside, [False]])
    edges = np.flatnonzero(np.diff(are_most.astype(np.int8))).reshape(-1, 2)
    found = [begin + np.flatnonzero(is_in[begin:end]) for begin, end in edges.tolist()]
    ends = [(int(places[0]), int(places[-1]) + 1) for places in found if len(places)]
    return [slice(begin, end) for begin, end in ends if end - begin > _SPELL // 2]


def without_spells(times: Floats, share: float, chance: float) -> Floats:
    """Return the times as if slower stretches, or all from a change on, had the usual level."""
    spells, is_usual = spells_of(times, share, chance)
    level = np.array(times)
    change = None if spells else change_of(times)
    if change and change.p <= chance and change.after >= (1 + share) * change.before:
        level[change.at :] -= change.after - change.before
    for spell in spells:
        level[spell] -= float(np.median(times[spell]) - np.median(times[is_usual]))
    return level


def within(spells: Iterable[slice], count: int) -> BoolArray:
    """Say which of `count` places are in one of the stretches."""
    inside = np.zeros(count, np.bool_)
    for spell in spells:
        inside[spell] = True
    return inside


def drift_of(times: Floats) -> Drift | None:
    """Return the line of Theil and Sen, and Mann and Kendall's z; None for fewer than 4 times.

    Long columns are taken as at most 300 medians of neighbours.
    """
    if len(times) < 4:
        return None
    width = -(-len(times) // _BINS)
    bins = [float(np.median(times[i : i + width])) for i in range(0, len(times), width)]
    y = np.array(bins)
    count = len(y)
    i, j = np.triu_indices(count, 1)
    slope = float(np.median((y[j] - y[i]) / (j - i)))
    middle = float(np.median(y - slope * np.arange(count)))
    s = float(np.sign(y[j] - y[i]).sum())
    z = (
        (s - math.copysign(1, s)) / math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
        if s
        else 0
    )
    left = y - middle - slope * np.arange(count)
    return Drift(middle, middle + slope * (count - 1), sigma(left), z)


def is_steady_rise(times: Floats) -> bool:
    """Say whether each quarter of the column lies above the one before."""
    quarters = [float(np.median(part)) for part in np.array_split(times, 4) if len(part)]
    return all(one < other for one, other in pairwise(quarters))


def fits_better_as_line(times: Floats, change: Change, drift: Drift) -> bool:
    """Say whether a line leaves less than a step does: mean absolute deviation."""
    places = np.arange(len(times))
    line = drift.start + (drift.end - drift.start) * places / max(len(times) - 1, 1)
    step = np.where(places < change.at, change.before, change.after)
    return float(np.abs(times - line).mean()) < float(np.abs(times - step).mean())


def rises_steadily(times: Floats, change: Change) -> bool:
    """Say whether a column rises with every quarter, along a line and not in one jump."""
    drift = drift_of(times)
    return drift is not None and is_steady_rise(times) and fits_better_as_line(times, change, drift)


def unsettled(times: Floats) -> int:
    """Return how many of the first times lie above the level at which the rest stays; 0 if none.

    Level and scatter are those of the second half. One slow time is an outlier, and of more than
    half the usual level is unknown.
    """
    later = times[len(times) // 2 :]
    if not len(later):
        return 0
    level = float(np.median(later))
    is_high = times > level + max(5 * sigma(later), _SETTLED * level)
    count = int(np.argmin(is_high))  # the first that is not
    return count if 2 <= count <= len(times) // 2 and not is_high.all() else 0


def running_median(times: Floats, width: int) -> Floats:
    """Return the median of the `width` times around each; at the ends, of the first or last."""
    if len(times) <= width:
        return np.full(len(times), np.median(times) if len(times) else 0.0)
    middles = np.median(np.lib.stride_tricks.sliding_window_view(times, width), axis=1)
    return np.pad(middles, (width // 2, width - 1 - width // 2), mode="edge")


def sigma(values: Floats | IntArray) -> float:
    """Return the standard deviation of normal values with the same median absolute deviation."""
    if not len(values):
        return 0.0
    return _MAD_TO_SIGMA * float(np.median(np.abs(values - np.median(values))))


def _ranks(times: Floats) -> Floats:
    """Return the ranks from 1 on, equal times the mean of theirs."""
    _, place, counts = np.unique(times, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[place.reshape(-1)].astype(np.float64)


def chance_of_runs(is_high: BoolArray) -> float:
    """Return how likely so few runs of high and low values are if the order is by chance.

    It is exact: a normal distribution is wrong by a factor of 100 where few values are high.
    """
    count, high = len(is_high), int(np.count_nonzero(is_high))
    if not 0 < high < count:
        return 1.0
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count + 1)))])

    def ways(values: int, runs: IntArray) -> npt.NDArray[np.float64]:
        """Return in how many ways so many values are divided into runs, as logarithms."""
        left = values - runs
        logs = factorials[values - 1] - factorials[runs - 1] - factorials[left]
        return np.where(left < 0, -np.inf, logs)

    runs = np.arange(2, 2 + int(np.count_nonzero(np.diff(is_high))))
    more, fewer = (runs + 1) // 2, runs // 2
    low = count - high
    of_all = factorials[count] - factorials[high] - factorials[low]
    first = np.exp(ways(high, more) + ways(low, fewer) - of_all)
    second = np.exp(ways(high, fewer) + ways(low, more) - of_all)
    return float(first.sum() + second.sum())
