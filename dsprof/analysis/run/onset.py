"""From which step on ranks are late, where they were not from the beginning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dsprof.analysis.run.lateness import Lateness
from dsprof.analysis.run.series import change_of, rises_steadily

_CHANCE = 0.001
"""A change must be less likely than this in a run without one."""
_LEAST_SIDE = 5
"""Steps before and after it."""
_BEFORE = 0.25
"""A rank with more than this share of its delay before the change was late already."""
_LASTING = 0.9
"""Share of the steps from there on that are late: a rank may be fast again later."""


class Onset(NamedTuple):
    """The first step in which ranks are late, and the median delay from there on."""

    step: int
    delay_ns: int


def onset(late: Lateness, places: Sequence[int]) -> Onset | None:
    """Return from where on the others wait longer than these; None if always or for a while."""
    is_known = (late.waited_ns >= 0).all(axis=0)
    waited, steps = late.waited_ns[:, is_known], late.steps[is_known]
    if not waited.size:
        return None
    delays = np.median(np.delete(waited, places, axis=0), axis=0) - waited[places].max(axis=0)
    change = change_of(delays)
    if change is None or change.p > _CHANCE or change.before > _BEFORE * change.after:
        return None
    if not _LEAST_SIDE <= change.at <= len(delays) - _LEAST_SIDE:
        return None
    if rises_steadily(delays, change):
        return None
    since = delays[change.at :]
    if np.mean(since > change.after / 2) < _LASTING:
        return None
    return Onset(int(steps[change.at]), int(np.median(since)))
