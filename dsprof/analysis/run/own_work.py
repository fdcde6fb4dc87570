"""How long ranks work themselves in a step: without the communication that blocks them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.rank.intervals import Array


def own_work_ns(steps: Steps, ranks: Iterable[int]) -> dict[int, float]:
    """Return the mean of the measured steps of each of these ranks; empty if one is not known."""
    return {rank: float(own.mean()) for rank, own in own_work_of_steps(steps, ranks).items()}


def own_work_of_steps(steps: Steps, ranks: Iterable[int]) -> dict[int, Array]:
    """Return the same in ns of each measured step that a rank has."""
    measured, found = np.asarray(steps.measured, np.int64), {}
    for rank in ranks:
        row = steps.ranks[rank].of(measured) if rank in steps.ranks else None
        if row is None or row.exposed_ns is None or not len(row.number):
            return {}
        found[rank] = row.total_ns - row.exposed_ns
    return found
