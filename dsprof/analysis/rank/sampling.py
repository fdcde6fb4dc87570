"""Samples of many ranks and long runs.

All ranks choose by the same rule, so that of two samples one contains the other: those of ranks
with equally many steps are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dsprof.analysis.rank.intervals import Array
from dsprof.analysis.rank.record_columns import step_columns
from dsprof.analysis.rank.remembered import remembered
from dsprof.analysis.rank.steps import counted_steps, recorded_steps, warmup_steps
from dsprof.trace.columns import BoolArray, IntArray
from dsprof.trace.rank_trace import RankTrace

STEPS = 1 << 20
"""Steps kept of all ranks together: 80 MB. Beyond, each rank keeps a sample."""
_LEAST_STEPS, _MOST_STEPS = 64, 1 << 14  # of a rank

LONGEST = 1 << 17
"""Further steps kept of all ranks together: 15 MB. A sample misses what happens a few times."""
_LEAST_LONGEST, _MOST_LONGEST = 8, 64  # of a rank

_FEWEST_STEPS = 16
"""Fewer whole steps tell less than some calls of more."""
_SLACK = 1.25
"""Steps are of different size, and the sample of them may be this much larger than asked for."""

_MIX = 2_654_435_761  # Knuth's multiplicative hash


class OneIn(NamedTuple):
    """Of so many steps one is in a sample, and of so many calls of these steps one."""

    steps: int = 1
    calls: int = 1


class KeptSteps(NamedTuple):
    """The numbers of steps, ascending, and one in how many they are: in full detail, counted."""

    numbers: Array
    strides: tuple[int, int]


@remembered
def sampled_steps(trace: RankTrace) -> KeptSteps:
    """Return the steps that a summary keeps in full.

    Steps in full detail are kept apart from those that were only counted.
    """
    most = share_of(trace, STEPS, _LEAST_STEPS, _MOST_STEPS)
    numbers = recorded_steps(trace)
    if len(numbers) <= most:
        return KeptSteps(numbers, (1, 1))
    is_counted = np.isin(numbers, counted_steps(trace))
    pools = (np.flatnonzero(~is_counted), np.flatnonzero(is_counted))
    samples = [sample(numbers, pool, most) for pool in pools]
    chosen = np.concatenate([rows for rows, _ in samples])
    detailed, counted = (stride for _, stride in samples)
    return KeptSteps(numbers[np.sort(chosen)], (detailed, counted))


def kept_steps(trace: RankTrace) -> Array:
    """Return the numbers of these steps."""
    return sampled_steps(trace).numbers


@remembered
def steps_left_out(trace: RankTrace) -> Array:
    """Return the numbers of the recorded steps that a summary does not keep, ascending."""
    numbers, kept = recorded_steps(trace), kept_steps(trace)
    if len(kept) == len(numbers):
        return numbers[:0]
    return np.setdiff1d(numbers, kept, assume_unique=True)


@remembered
def longest_steps(trace: RankTrace) -> Array:
    """Return the numbers of the longest steps that `kept_steps` leaves out, ascending.

    Those of the warm-up are not among them. What slows one rank of a synchronous run lengthens the
    step of all: they choose the same.
    """
    left = steps_left_out(trace)
    if not len(left):
        return left
    left = left[left >= recorded_steps(trace)[warmup_steps(len(trace.steps))]]
    steps = step_columns(trace)
    times = (steps.end_ns - steps.start_ns)[steps.rows_of(left)]
    most = share_of(trace, LONGEST, _LEAST_LONGEST, _MOST_LONGEST)
    longest: Array = np.sort(left[np.argsort(-times, kind="stable")[:most]])
    return longest


def share_of(trace: RankTrace, budget: int, least: int, most: int) -> int:
    """Return how much of what all ranks may keep together this rank may keep."""
    return min(max(budget // max(trace.header.world_size, 1), least), most)


def sample_calls(trace: RankTrace, chosen: Array, most: int) -> tuple[Array, OneIn]:
    """Return at most about `most` of the chosen collectives: of whole steps, while 16 are left.

    Then single calls: half the calls of a step say little of how long its ranks waited.
    """
    if len(chosen) <= most:
        return chosen, OneIn()
    step, seq = (column[chosen] for column in (trace.collectives.step, trace.collectives.seq))
    is_outside, count, one_in = step < 0, len(np.unique(step)), 1
    while len(chosen) > most * one_in and count >= 2 * one_in * _FEWEST_STEPS:
        one_in *= 2
    steps = one_in * sampled_steps(trace).strides[0]  # these are themselves a sample
    number, stride = np.where(is_outside, seq, step), np.where(is_outside, one_in, steps)
    kept = chosen[is_sampled(number, stride)]
    rows, calls = sample(trace.collectives.seq, kept, int(_SLACK * most))
    return rows, OneIn(steps, calls)


def sample(seq: IntArray, chosen: Array, most: int) -> tuple[Array, int]:
    """Return at most about `most` of the chosen rows, and one in how many that is.

    Chosen only by a hash of the number: all ranks choose the same, and no period of the program
    hides behind that of the sample.
    """
    stride = 1
    while len(chosen) > most * stride:
        stride *= 2
    return chosen[is_sampled(seq[chosen], stride)], stride


def is_sampled(seq: IntArray, stride: int | Array) -> BoolArray:
    """Say of each number whether it is in the sample of one in `stride`, a power of two."""
    found: BoolArray = ((seq.astype(np.int64) * _MIX) & 0xFFFFFFFF) < (1 << 32) // stride
    return found


def in_sample(steps: Sequence[int] | Array, one_in: int) -> Array:
    """Return the steps that are in a sample, and -1, for what is in none."""
    numbers = np.asarray(steps, np.int64)
    found: Array = numbers[(numbers < 0) | is_sampled(numbers, one_in)]
    return found
