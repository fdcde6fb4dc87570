"""Which steps count, and which rows of a trace belong to them."""

from __future__ import annotations

import numpy as np

from dsprof.analysis.timeline import Array
from dsprof.trace.table import BoolArray, IntArray, RankTrace


def warmup_steps(recorded: int) -> int:
    """Return how many of the first steps are left out of totals and rules.

    The first steps allocate buffers, compile kernels and import modules. Two are left out where at
    least four were recorded, else one, but never the only one.
    """
    return 2 if recorded >= 4 else min(1, max(recorded - 1, 0))


def measured_steps(trace: RankTrace) -> Array:
    """Return the numbers of the steps of this rank that totals and rules take, ascending."""
    numbers = np.unique(np.array([step.step for step in trace.steps], np.int64))
    return numbers[warmup_steps(len(numbers)) :]


def in_steps(step: IntArray, numbers: Array) -> BoolArray:
    """Say which rows have a step among `numbers` (ascending)."""
    if not len(numbers):
        return np.zeros(len(step), np.bool_)
    index = np.minimum(np.searchsorted(numbers, step), len(numbers) - 1)
    return np.asarray(numbers[index] == step, np.bool_)


def measured_rows(trace: RankTrace) -> Array:
    """Return the indices of the collectives that belong to measured steps."""
    return np.flatnonzero(in_steps(trace.collectives.step, measured_steps(trace)))


def on_host_clock(trace: RankTrace) -> bool:
    """Say whether waits on the host clock show the time lost to communication.

    On a CPU they do. On an accelerator collectives run on streams: the call returns before the
    work is done, and the stall falls where nothing is written yet.
    """
    return trace.header.device == "cpu"
