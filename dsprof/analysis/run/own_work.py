"""How long ranks work themselves in a step: without the communication that blocks them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.rank.intervals import Array

T = TypeVar("T")


def own_work_ns(steps: Steps, ranks: Iterable[int]) -> dict[int, float]:
    """Return the mean of the measured steps of each of these ranks; empty if one is not known."""
    measured = np.asarray(steps.measured, np.int64)
    return _of_each(steps, ranks, measured, lambda own: float(own.mean()))


def own_work_of_steps(steps: Steps, ranks: Iterable[int], most: int) -> dict[int, Array]:
    """Return the same in ns of each measured step that a rank has, or of `most` random ones.

    All steps of many ranks take much memory, and steps at one distance may be those of a period.
    """
    measured = np.asarray(steps.measured, np.int64)
    if len(measured) > most:
        measured = np.sort(np.random.default_rng(0).choice(measured, most, replace=False))
    return _of_each(steps, ranks, measured, lambda own: own)


def _of_each(
    steps: Steps, ranks: Iterable[int], measured: Array, result: Callable[[Array], T]
) -> dict[int, T]:
    found = {}
    for rank in ranks:
        row = steps.ranks[rank].of(measured) if rank in steps.ranks else None
        if row is None or row.exposed_ns is None or not len(row.number):
            return {}
        found[rank] = result(row.total_ns - row.exposed_ns)
    return found
