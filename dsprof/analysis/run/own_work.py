"""How long ranks work themselves in a step: without the communication that blocks them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dsprof.analysis.aggregates.steps import Steps


def own_work_ns(steps: Steps, ranks: Iterable[int]) -> dict[int, float]:
    """Return the mean of the measured steps of each of these ranks; empty if one is not known."""
    measured, found = np.asarray(steps.measured, np.int64), {}
    for rank in ranks:
        row = steps.ranks[rank].of(measured) if rank in steps.ranks else None
        if row is None or row.exposed_ns is None or not len(row.number):
            return {}
        found[rank] = float((row.total_ns - row.exposed_ns).mean())
    return found
