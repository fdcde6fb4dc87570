"""Ranks that each work longer every so many steps, but not in the same steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dsprof.analysis.run.series import period_of, sigma
from dsprof.analysis.run.step_columns import StepColumns

_SIGMAS = 5.0
_APART = 2
"""There are so many times more steps in which any rank works longer than of one rank."""


class OwnPeriods(NamedTuple):
    """What at least half of the ranks do at periods of their own."""

    periods: dict[int, int]  # of each rank, in steps
    excess_ns: int  # median of the longer steps of all ranks
    cost_ns: int  # of a step: the longest excess of any rank, mean over all steps


def own_periods(columns: StepColumns, share: float) -> OwnPeriods | None:
    """Return the periods of ranks whose own time grows by `share` of a step; None of few ranks.

    Steps in which most of the ranks work longer are left out.
    """
    count = len(columns.number)
    least_ns = share * float(np.median(columns.total_ns)) if count else 0.0
    long_steps = {}
    longest_ns, together, of = np.zeros(count), np.zeros(count, np.int64), 0
    for rank, own_ns in columns.own_ns():
        of += 1
        known = own_ns[own_ns >= 0]
        if len(known):
            more_ns = np.where(own_ns >= 0, own_ns - np.median(known), 0.0)
            is_long = more_ns > max(least_ns, _SIGMAS * sigma(known))
            long_steps[rank] = is_long, more_ns[is_long]
            longest_ns = np.maximum(longest_ns, np.where(is_long, more_ns, 0.0))
            together += is_long
    is_open = 2 * together <= of
    periods, excesses_ns, steps = {}, [], []
    for rank, (is_long, more_ns) in long_steps.items():
        if period := period_of(is_long & is_open, is_open):
            periods[rank] = period.period
            excesses_ns.append(float(np.median(more_ns[is_open[is_long]])))
            steps.append(len(period.places))
    if len(periods) < 2 or 2 * len(periods) < of:
        return None
    if np.count_nonzero(together[is_open]) < _APART * float(np.median(steps)):
        return None
    cost_ns = int(longest_ns[is_open].sum()) // count
    return OwnPeriods(periods, int(np.median(excesses_ns)), cost_ns)
