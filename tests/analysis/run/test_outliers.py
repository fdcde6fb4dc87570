from __future__ import annotations

import numpy as np
import pytest

from dsprof.analysis.run.outliers import alike_in_a_row, chance_of, low_outliers


def outliers(*values: int, least_gap: float = 1) -> list[int]:
    mask = low_outliers(np.array(values, np.int64), least_gap)
    assert mask.shape == (len(values),)
    return np.flatnonzero(mask).tolist()


def test_of_two_the_lower_stands_apart_by_the_least_gap():
    assert outliers(10, 50, least_gap=40) == [0]
    assert outliers(10, 49, least_gap=40) == []


def test_dixons_ratio_by_hand():
    # r10 of four: (50 - 10) / (53 - 10) = 0.930 is above 0.926, (50 - 10) / (54 - 10) is not.
    assert outliers(50, 10, 51, 53) == [1]
    assert outliers(50, 10, 51, 54) == []


def test_a_bound_of_the_critical_value_by_hand():
    # r10 of three: 50 / 99 is above 1/2, 50 / 100 is not. That of 30 is 0.372, below the bound.
    assert low_outliers(np.array([0, 50, 99]), 1, most=0.5).tolist() == [True, False, False]
    assert not low_outliers(np.array([0, 50, 100]), 1, most=0.5).any()
    assert low_outliers(np.array([0, 40, *[100] * 28]), 1, most=0.5).any()


@pytest.mark.parametrize("count", [3, 10, 30])
def test_chance_calls_one_in_two_hundred_an_outlier(count):
    """The critical values are of 99 %, two-sided: 0.5 % on the low side."""
    draws = np.random.default_rng(1).normal(10**9, 10**6, (20_000, count)).astype(np.int64)
    called = sum(bool(low_outliers(row, 1).any()) for row in draws)
    assert 0.002 < called / len(draws) < 0.009


def test_a_large_group_may_have_several():
    values = [100 + n % 5 for n in range(40)]
    values[3] = values[4] = 50
    assert outliers(*values) == [3, 4]
    assert outliers(*values, least_gap=60) == []


def test_what_is_alike_has_no_outlier():
    assert outliers() == outliers(7) == outliers(*[7] * 4) == outliers(*[7] * 40) == []


def test_chance_by_hand():
    # Of two ranks one gets all of 8 votes: 2 / 2**8. One of four all of 2: 4 / 16.
    assert chance_of(8, 8, 2) == pytest.approx(2 / 256)
    assert chance_of(2, 2, 4) == pytest.approx(0.25)
    assert chance_of(1, 2, 2) == chance_of(0, 0, 2) == chance_of(3, 3, 1) == 1
    assert chance_of(1500, 2000, 2) < 1e-9


def test_what_is_in_doubt_sets_the_others_not_apart():
    waits = np.array([50, 51, 0], np.int64)
    assert low_outliers(waits, 10).tolist() == [False, False, False]
    assert low_outliers(waits, 10, doubt=2).tolist() == [False, False, True]


def test_one_far_below_the_others_stands_apart_in_a_group_of_any_size():
    assert all(outliers(0, *[1000] * others) == [0] for others in range(1, 42))


@pytest.mark.parametrize(
    ("series", "count"),
    [
        ("", 1),
        ("111111", 1),
        ("10101010", 1),
        ("11110000", 7),  # r is 5 / 8, and more is added than leaves it below 1 - 2 / 8
        ("1100" * 4, 1.3167),  # r is 1 / 16, and (1 + 3 / 16) / 16 is added
    ],
)
def test_neighbours_that_are_alike_count_as_one_by_hand(series, count):
    values = np.array([one == "1" for one in series], np.bool_)
    assert alike_in_a_row(values) == pytest.approx(count, rel=1e-4)
