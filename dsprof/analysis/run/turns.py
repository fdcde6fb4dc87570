"""Ranks that are late one after another, each for a while: a straggler that moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dsprof.analysis.run.lateness import Lateness
from dsprof.analysis.run.series import chance_of_runs, sigma, stretches

_CHANCE = 0.001
"""That the steps in which ranks are late follow each other in an unordered run."""
_AGREEING = 2 / 3
"""This share of the steps with late ranks must be in turns."""
_LASTING = 0.9
"""Share of the steps of a turn in which the ranks are late."""
_SCATTER = 0.5
"""The delays of a turn are apart by at most this share of the median: noise wanders up and down."""


class Turn(NamedTuple):
    """Steps in which the others wait for the same ranks, or for most of them."""

    ranks: tuple[int, ...]
    first: int
    last: int
    steps: int
    delay_ns: int  # median


class Turns(NamedTuple):
    """All of them in order of time, and how much longer the others wait: mean over all steps."""

    turns: list[Turn]
    cost_ns: int

    @property
    def are_over(self) -> bool:
        """Whether no rank is late again later: one that is may be late all the time."""
        return len({turn.ranks for turn in self.turns}) == len(self.turns)


def turns(late: Lateness, sets: Sequence[tuple[int, ...]], least_gap_ns: float) -> Turns | None:
    """Return when which of disjoint sets of ranks are late; None if they do not take turns.

    A set is late in a step if all its ranks wait so much less than half of the other ranks do.
    """
    is_known = (late.waited_ns >= 0).all(axis=0)
    if len(sets) < 2 or not is_known.any():
        return None
    waited, steps = late.waited_ns[:, is_known], late.steps[is_known]
    known = np.array(late.ranks)
    places = [np.searchsorted(known, ranks) for ranks in sets]
    longest = np.stack([waited[place].max(axis=0) for place in places])
    least = np.argmin(longest, axis=0)
    gap_ns = -longest.min(axis=0)
    for at in np.unique(least).tolist():
        others = np.delete(waited[:, least == at], places[at], axis=0)
        gap_ns[least == at] += np.median(others, axis=0).astype(np.int64)
    is_late = gap_ns >= max(least_gap_ns, late.doubt_ns)
    latest = np.where(is_late, least, -1)
    found = []
    for at in np.unique(latest[is_late]).tolist():
        is_latest = latest == at
        spells = stretches(is_latest) if chance_of_runs(is_latest) <= _CHANCE else []
        for one in spells:
            delay_ns = int(np.median(gap_ns[one][is_latest[one]]))
            is_steady = sigma(gap_ns[one]) <= _SCATTER * delay_ns
            if not is_steady or np.mean(is_latest[one]) < _LASTING:
                continue
            ends = int(steps[one.start]), int(steps[one.stop - 1])
            found.append(Turn(sets[at], *ends, one.stop - one.start, delay_ns))
    if len({turn.ranks for turn in found}) < 2:
        return None
    if sum(turn.steps for turn in found) < _AGREEING * np.count_nonzero(is_late):
        return None
    found.sort(key=lambda turn: turn.first)
    return Turns(found, int(gap_ns[is_late].sum()) // len(steps))
