"""Occasional long steps in which only a few ranks work longer, and all others wait for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.rank.intervals import Array
from dsprof.analysis.run.series import sigma
from dsprof.analysis.step_rows import RankSteps
from dsprof.trace.columns import BoolArray

SLOW_SHARE = 0.25
"""A slow step exceeds the median step by this share of it."""
_LEAST_STEPS = 3
"""Fewer may be chance."""
_OCCASIONAL = 0.2
"""If more of the sampled steps are long, they are no exceptions."""
_OWN_SHARE = 0.5
"""A rank causes a long step if it works longer by this share of the excess."""
_AGREEING = 2 / 3
"""This share of the long steps, or of their excess, must have the same cause."""
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Delays:
    """Long steps that a few ranks cause."""

    ranks: tuple[int, ...]  # (): whether ranks cause them is unknown, as no waits were measured
    steps: tuple[int, ...]
    lengths_ns: tuple[int, ...]  # of these steps, mean over the ranks
    excess_ns: int  # median of these steps, over the median step
    usual_ns: int  # the median step
    are_all: bool  # no other step of the run can be as long


class _Times(NamedTuple):
    """Steps after warm-up in columns, ranks in rows; -1 where unknown."""

    number: Array
    total_ns: Array  # mean over the ranks
    known: Array  # ranks that kept the step
    own_ns: Array  # without waits: ranks x steps


def delays(steps: Steps, slow_share: float = SLOW_SHARE) -> Delays | None:
    """Find which ranks delay the steps that take `slow_share` longer than the median.

    Where no waits were measured, the steps are those of which a sample shows too few.
    """
    fair = np.array(steps.fair, np.int64)
    kept, beside = _times(steps.ranks, fair), _beside(steps)
    if not len(kept.number):
        return None
    usual_ns = int(np.median(kept.total_ns))
    least_ns = max(5 * sigma(kept.total_ns.astype(np.float64)), slow_share * usual_ns)
    if np.mean(kept.total_ns - usual_ns > least_ns) > _OCCASIONAL:
        return None
    chosen = _times(steps.ranks, np.setdiff1d(np.array(steps.after_warmup, np.int64), fair))
    every = zip(kept, chosen, beside, strict=True)
    both = _Times(*(np.concatenate(parts, axis=-1) for parts in every))
    excess_ns = both.total_ns - usual_ns
    is_long = excess_ns > least_ns
    before = _before(both.number)
    is_own, is_earlier = (
        one & is_long for one in _causes(both, _usual_own(kept), excess_ns, before)
    )
    # What a rank does at the end of its step, the others wait for in the next one: one delay.
    is_next = is_earlier.any(axis=0)
    sums_ns = excess_ns * both.known
    excess_ns[is_next] = (sums_ns[is_next] + sums_ns[before[is_next]]) // len(steps.ranks)
    is_delay = is_long.copy()
    is_delay[before[is_next]] = False
    is_cause = (is_own | is_earlier) & is_delay
    votes, delay_ns = is_cause.sum(axis=1), np.where(is_delay, excess_ns, 0)
    agree = (votes >= _AGREEING * np.count_nonzero(is_delay)) | (
        is_cause @ delay_ns >= _AGREEING * delay_ns.sum()
    )
    found = (votes >= _LEAST_STEPS) & agree
    is_unknown = steps.is_sampled and bool((both.own_ns == _UNKNOWN).all())
    mine = is_delay if is_unknown else is_cause[found].any(axis=0)
    if np.count_nonzero(mine) < _LEAST_STEPS:
        return None
    number = both.number - is_next
    ascending = np.flatnonzero(mine)[np.argsort(number[mine], kind="stable")]
    return Delays(
        tuple(np.array(sorted(steps.ranks))[found].tolist()),
        tuple(number[ascending].tolist()),
        tuple(both.total_ns[ascending].tolist()),
        int(np.median(excess_ns[mine])),
        usual_ns,
        not len(chosen.number) and (not is_long[len(kept.number) :].all() or not steps.is_sampled),
    )


def _causes(
    times: _Times, usual_own_ns: Array, excess_ns: Array, before: Array
) -> tuple[BoolArray, BoolArray]:
    """Say which ranks work so much longer in which steps; none where half of them do.

    The second result is of steps in which none does: of those, which did in the step before.
    """
    shape, least_ns = times.own_ns.shape, _OWN_SHARE * excess_ns
    is_own, is_earlier = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    for at, (own_ns, usual_ns) in enumerate(zip(times.own_ns, usual_own_ns, strict=True)):
        more_ns = np.where(own_ns != _UNKNOWN, own_ns - usual_ns, 0)
        is_own[at] = (own_ns != _UNKNOWN) & (more_ns >= least_ns)
        is_earlier[at] = (
            (before >= 0) & (own_ns[before] != _UNKNOWN) & (more_ns[before] >= least_ns)
        )
    is_known = times.own_ns != _UNKNOWN
    is_earlier &= is_known.any(axis=0) & ~is_own.any(axis=0)
    compared = int(np.count_nonzero(is_known.any(axis=1)))
    return _few(is_own, compared), _few(is_earlier, compared)


def _few(is_cause: BoolArray, of: int) -> BoolArray:
    return np.asarray(is_cause & (is_cause.sum(axis=0) * 2 < of), np.bool_)


def _before(numbers: Array) -> Array:
    """Return where the step before each is; -1 where it is not."""
    order = np.argsort(numbers, kind="stable")
    place = order[np.searchsorted(numbers, numbers - 1, sorter=order)]
    return np.where(numbers[place] == numbers - 1, place, -1)


def _usual_own(kept: _Times) -> Array:
    known = (row[row != _UNKNOWN] for row in kept.own_ns)
    return np.array([np.median(row) if len(row) else 0 for row in known], np.int64)


def _beside(steps: Steps) -> _Times:
    """Return the steps beside the sample that most ranks kept, and any step before these."""
    ranks = Counter(number for row in steps.longest.values() for number in row.number.tolist())
    most = [
        number
        for number in sorted(ranks)
        if max(ranks[number], ranks[number + 1]) * 2 > len(steps.longest)
    ]
    return _times(steps.longest, np.array(most, np.int64))


def _times(rows: Mapping[int, RankSteps], numbers: Array) -> _Times:
    own_ns = np.full((len(rows), len(numbers)), _UNKNOWN)
    sums, known = np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.int64)
    for at, rank in enumerate(sorted(rows)):
        row = rows[rank].of(numbers)
        place = np.searchsorted(numbers, row.number)
        sums[place] += row.total_ns
        known[place] += 1
        if row.exposed_ns is not None:
            shown = ~(row.counted & row.on_device)
            own_ns[at, place[shown]] = (row.total_ns - row.exposed_ns)[shown]
    return _Times(numbers, sums // np.maximum(known, 1), known, own_ns)
