"""Ranks that each work longer every so many steps, but not in the same steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dsprof.analysis.run.series import period_of, sigma
from dsprof.analysis.run.step_columns import StepColumns

_SIGMAS = 5.0


class OwnPeriods(NamedTuple):
    """What at least half of the ranks do at periods of their own."""

    periods: dict[int, int]  # of each rank, in steps
    excess_ns: int  # median of the longer steps of all ranks
    cost_ns: int  # of a step: the longest excess of any rank, mean over all steps


def own_periods(columns: StepColumns, share: float) -> OwnPeriods | None:
    """Return the periods of ranks whose own time grows by `share` of a step; None if they agree.

    They do if most of the ranks work longer in at least half of the steps in which any does.
    """
    least_ns = share * float(np.median(columns.total_ns)) if len(columns.number) else 0.0
    periods, excesses = {}, []
    longest_ns = np.zeros(len(columns.number))
    ranks, count = np.zeros(len(columns.number), np.int64), 0
    for rank, own_ns in columns.own_ns():
        count += 1
        known = own_ns[own_ns >= 0]
        if not len(known):
            continue
        more_ns = np.where(own_ns >= 0, own_ns - np.median(known), 0.0)
        is_long = more_ns > max(least_ns, _SIGMAS * sigma(known))
        if period := period_of(is_long):
            periods[rank] = period.period
            excesses.append(float(np.median(more_ns[is_long])))
            longest_ns = np.maximum(longest_ns, np.where(is_long, more_ns, 0.0))
            ranks += is_long
    is_shared = 2 * np.count_nonzero(2 * ranks > count) >= np.count_nonzero(ranks)
    if len(periods) < 2 or 2 * len(periods) < count or is_shared:
        return None
    return OwnPeriods(periods, int(np.median(excesses)), int(longest_ns.mean()))
