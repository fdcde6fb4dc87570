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
"""This share of the long steps must have the same cause."""
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
    is_cause = _causes(both, _usual_own(kept), excess_ns) & is_long
    votes = is_cause.sum(axis=1)
    found = (votes >= _LEAST_STEPS) & (votes >= _AGREEING * np.count_nonzero(is_long))
    is_unknown = steps.is_sampled and bool((both.own_ns == _UNKNOWN).all())
    mine = is_long if is_unknown else is_cause[found].any(axis=0)
    if np.count_nonzero(mine) < _LEAST_STEPS:
        return None
    ascending = np.flatnonzero(mine)[np.argsort(both.number[mine], kind="stable")]
    return Delays(
        tuple(np.array(sorted(steps.ranks))[found].tolist()),
        tuple(both.number[ascending].tolist()),
        tuple(both.total_ns[ascending].tolist()),
        int(np.median(excess_ns[mine])),
        usual_ns,
        not len(chosen.number) and (not is_long[len(kept.number) :].all() or not steps.is_sampled),
    )


def _causes(times: _Times, usual_own_ns: Array, excess_ns: Array) -> BoolArray:
    """Say which ranks work so much longer in which steps; none where half of them do."""
    is_cause, least_ns = np.zeros(times.own_ns.shape, np.bool_), _OWN_SHARE * excess_ns
    for found, own_ns, usual_ns in zip(is_cause, times.own_ns, usual_own_ns, strict=True):
        found[:] = (own_ns != _UNKNOWN) & (own_ns - usual_ns >= least_ns)
    return np.asarray(is_cause & (is_cause.sum(axis=0) * 2 < len(is_cause)), np.bool_)


def _usual_own(kept: _Times) -> Array:
    known = (row[row != _UNKNOWN] for row in kept.own_ns)
    return np.array([np.median(row) if len(row) else 0 for row in known], np.int64)


def _beside(steps: Steps) -> _Times:
    """Return the steps beside the sample that most ranks kept."""
    ranks = Counter(number for row in steps.longest.values() for number in row.number.tolist())
    most = [number for number in sorted(ranks) if ranks[number] * 2 > len(steps.longest)]
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
    return _Times(numbers, sums // np.maximum(known, 1), own_ns)
