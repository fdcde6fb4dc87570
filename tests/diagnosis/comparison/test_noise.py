"""The difference of two runs, and how sure it is."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest

from dsprof.diagnosis.comparison.noise import LEAST_STEPS, difference


def noisy(
    chance: random.Random, count: int, memory: float = 0.0, spread: float = 10.0
) -> list[float]:
    """Times around 100 of which each resembles the one before as `memory` says."""
    steps = [chance.gauss(0, spread * (1 - memory**2) ** 0.5) for _ in range(count + 100)]
    walk = accumulate(steps, lambda last, step: memory * last + step)
    return [100 + value for value in walk][100:]


def test_by_hand() -> None:
    before = [10.0, 10, 12, 12, 14, 14, 16, 16]  # medians of parts: 10, 12, 14, 16
    after = [23.0] * 8
    interval = difference(before, after)
    assert interval is not None
    reach = 5.841 * (20 / 3 / 4) ** 0.5
    assert interval == pytest.approx((10 - reach, 10 + reach))


def test_runs_without_noise_differ_by_what_they_differ() -> None:
    assert difference([10.0] * 8, [12.0] * 20) == (2, 2)


def test_too_few_steps_tell_nothing() -> None:
    few, enough = [1.0] * (LEAST_STEPS - 1), [1.0] * LEAST_STEPS
    assert difference(few, enough) is None
    assert difference(enough, few) is None
    assert difference(enough, enough) is not None


@pytest.mark.parametrize(("memory", "wrong"), [(0.0, 2), (0.6, 4), (0.9, 20)])
def test_equal_runs_are_hardly_ever_told_apart(memory: float, wrong: int) -> None:
    """Of 400; the bound is generous where steps resemble each other for a good part of the run."""
    chance = random.Random(7)
    excluded = 0
    for _ in range(400):
        interval = difference(noisy(chance, 40, memory), noisy(chance, 40, memory))
        assert interval is not None
        excluded += not interval.low <= 0 <= interval.high
    assert excluded <= wrong


def test_a_slow_step_here_and_there_does_not_count() -> None:
    """Checkpoints and collections of garbage: a median passes them over."""
    steady, disturbed = [100.0] * 40, [100.0] * 40
    disturbed[::11] = [900.0] * 4
    assert difference(steady, disturbed) == (0, 0)


def test_a_change_beyond_the_noise_is_seen() -> None:
    chance = random.Random(11)
    seen = 0
    for _ in range(100):
        interval = difference(noisy(chance, 40), [1.5 * t for t in noisy(chance, 40)])
        assert interval is not None
        seen += interval.low > 0
    assert seen >= 95
