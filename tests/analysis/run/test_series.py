from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from dsprof.analysis.run.series import (
    BoolArray,
    Change,
    Drift,
    Period,
    chance_of_runs,
    change_of,
    costly_places,
    drift_of,
    fits_better_as_line,
    is_steady_rise,
    period_of,
    periods_of,
    running_median,
    sigma,
    slow_places,
    spells_of,
    unsettled,
)

NOISE = np.random.default_rng(7).normal(0, 1, 400)


def period_in(slow: BoolArray) -> Period | None:
    return period_of(slow, np.ones(len(slow), np.bool_))


def test_a_change_is_found_where_it_is_with_its_levels():
    times = np.array([100.0, 101, 99, 100, 102, 150, 151, 149, 150, 152])
    change = change_of(times)
    assert change is not None
    assert (change.at, change.before, change.after) == (5, 100, 150)
    # U_5 = 2 * 15 - 5 * 11 = -25, p = 2 exp(-6 * 625 / 1100).
    assert change.p == pytest.approx(2 * np.exp(-3750 / 1100))
    assert change.scatter == pytest.approx(1.4826)  # what is left is 0 1 1 0 2 on either side


def test_scatter_before_a_change_does_not_move_it():
    times = np.array([100.0] * 57 + [101.0] * 5 + [150.0] * 31)  # the largest |U_t| is at 57
    change = change_of(times)
    assert change is not None
    assert (change.at, change.before, change.after) == (62, 100, 150)


def test_wild_steps_make_no_change():
    times = 100 + NOISE[:100].copy()
    times[[10, 60, 61, 90]] = 900
    change = change_of(times)
    assert change is not None
    assert abs(change.after - change.before) < 1


def test_a_line_by_hand():
    drift = drift_of(np.array([10.0, 12, 14, 16, 18]))
    assert drift is not None
    assert (drift.start, drift.end, drift.scatter) == (10, 18, 0)
    # S = 10 of 10 pairs, variance 5 * 4 * 15 / 18.
    assert drift.z == pytest.approx(9 / np.sqrt(300 / 18))


def test_a_fall_is_a_rise_turned_round_and_what_is_wild_is_left():
    drift = drift_of(np.array([18.0, 16, 14, 17, 10, 8, 6]))
    assert drift is not None
    assert (drift.start, drift.end, drift.scatter) == (18, 6, 0)
    # S = 2 - 19 of 21 pairs, variance 7 * 6 * 19 / 18.
    assert drift.z == pytest.approx(-16 / np.sqrt(798 / 18))


def test_a_jump_is_no_line_and_a_line_no_jump():
    jump = 100 + NOISE[:60] + np.where(np.arange(60) < 30, 0, 50)
    line = 100 + NOISE[:60] + np.arange(60)
    for times, is_line in ((jump, False), (line, True)):
        change, drift = change_of(times), drift_of(times)
        assert change is not None
        assert drift is not None
        assert fits_better_as_line(times, change, drift) is is_line
    assert is_steady_rise(line)
    assert not is_steady_rise(line[::-1])


def test_long_columns_keep_their_ends():
    drift = drift_of(np.linspace(0, 1000, 20_000))
    assert drift is not None
    assert (drift.start, drift.end) == pytest.approx((0, 1000), abs=4)


@pytest.mark.parametrize(("period", "first"), [(10, 7), (3, 0), (25, 20)])
def test_a_period_is_found_with_its_first_place(period, first):
    times = 100 + NOISE[:100].copy()
    times[first::period] += 60
    found = period_in(slow_places(times, 0.25))
    assert found is not None
    assert (found.period, found.first) == (period, first)
    assert len(found.places) == len(range(first, 100, period))


def test_one_step_more_that_is_slow_does_not_hide_the_period():
    slow = np.zeros(100, np.bool_)
    slow[9::10] = slow[33] = True
    found = period_in(slow)
    assert found is not None
    assert (found.period, found.first, 33 in found.places) == (10, 9, False)


def test_where_two_periods_meet_the_second_is_in_what_the_first_leaves():
    """Every third step is slow, and every fifth: a third of these are of both."""
    times = np.full(58, 100.0)
    times[::5] += 60
    times[::3] += 200
    found = periods_of(times > 100, times)
    assert found[1].places == (*range(0, 58, 5),)
    assert [(one.period, one.first) for one in found] == [(3, 0), (5, 0)]


def test_slow_steps_below_the_usual_time_of_a_drift_leave_its_period_alone():
    times = np.linspace(100, 300, 500)
    times[3::50] = 600
    times[[10, 17]] += 60
    [found] = periods_of(slow_places(times, 0.25), times)
    assert (found.first, found.period) == (3, 50)


@pytest.mark.parametrize("places", [[], [5], [5, 15], [5, 15, 40, 47, 80, 81], [1, 11, 21]])
def test_few_and_scattered_slow_steps_have_no_period(places):
    slow = np.zeros(100, np.bool_)
    slow[places] = True
    assert period_in(slow) is None


def test_a_slow_level_is_no_slow_step():
    times = 100 + NOISE[:100] + np.where(np.arange(100) < 50, 0, 100)
    assert not slow_places(times, 0.25).any()


def test_slow_is_what_is_longer_by_more_than_the_share():
    times = np.full(9, 100.0)
    times[4] = 125
    assert not slow_places(times, 0.25).any()
    times[4] = 126
    assert slow_places(times, 0.25).nonzero()[0].tolist() == [4]


@pytest.mark.parametrize(("length", "is_enough"), [(3, False), (4, True)])
def test_four_times_have_a_change_and_a_drift(length, is_enough):
    times = np.arange(length, dtype=float)
    assert (change_of(times) is not None) is is_enough
    assert (drift_of(times) is not None) is is_enough


@pytest.mark.parametrize(("apart", "has_period"), [(2, False), (3, True)])
def test_every_other_step_is_no_period(apart, has_period):
    slow = np.zeros(30, np.bool_)
    slow[::apart] = True
    assert (period_in(slow) is not None) is has_period


@pytest.mark.parametrize(("absent", "has_period"), [([20], True), ([20, 30], False)])
def test_four_fifths_of_the_grid_are_slow(absent, has_period):
    slow = np.zeros(50, np.bool_)
    slow[::10] = True
    slow[absent] = False
    assert (period_in(slow) is not None) is has_period


@pytest.mark.parametrize(
    ("times", "count"),
    [
        ([], 0),
        ([200, 200, 100, 100, 100, 100], 2),
        ([200, 100, 100, 100, 100, 100], 0),  # an outlier
        ([200, 200, 200, 100, 100, 100], 3),
        ([200, 200, 200, 200, 100, 100, 100], 0),  # more than half
        ([110, 110, 100, 100, 100, 100], 0),  # no more than a tenth above
    ],
)
def test_the_first_times_settle_where_the_rest_stays(times, count):
    assert unsettled(np.array(times, float)) == count


def test_short_columns_tell_nothing():
    nothing = np.zeros(0)
    assert change_of(nothing) is drift_of(nothing) is None
    assert not slow_places(nothing, 0.25).any()
    assert sigma(nothing) == 0


def test_sigma_and_running_median():
    assert sigma(np.array([-2.0, -1, 0, 1, 30])) == pytest.approx(1.4826)
    times = np.array([1.0, 9, 2, 3, 4])
    assert running_median(times, 3).tolist() == [2, 2, 3, 3, 3]


@pytest.mark.parametrize(("length", "is_whole"), [(28, True), (30, True), (48, False)])
def test_three_slow_steps_have_a_period_unless_their_grid_goes_on(length, is_whole):
    slow = np.zeros(length, np.bool_)
    slow[[7, 17, 27]] = True
    found = period_in(slow)
    assert (found is not None) is is_whole
    if found is not None:
        assert (found.period, found.first, found.places) == (10, 7, (7, 17, 27))


@pytest.mark.parametrize(
    ("times", "step", "is_line"),
    [
        # The line leaves nothing, the step 1.
        ([10, 12, 14, 16], Change(2, 11, 15, 0, 0), True),
        ([10, 20], Change(1, 10, 19, 0, 0), True),
        # The step leaves nothing, the line 1.
        ([10, 10, 16, 16], Change(2, 10, 16, 0, 0), False),
    ],
)
def test_a_line_runs_from_the_first_time_to_the_last(times, step, is_line):
    drift = Drift(times[0], times[-1], 0, 9)
    assert fits_better_as_line(np.array(times, float), step, drift) is is_line


def test_places_that_are_only_noise_beside_the_others_are_not_costly():
    times = np.full(300, 10.0)
    times[::50] = 100
    times[[3, 77, 123, 124, 201]] = 20
    slow = times > 10
    assert np.flatnonzero(costly_places(slow, times)).tolist() == [0, 50, 100, 150, 200, 250]
    assert not costly_places(times > 1000, times).any()


def test_places_that_are_about_as_slow_are_all_costly():
    times = np.full(300, 10.0)
    times[[3, 77, 123, 201]] = 20, 25, 22, 18
    assert (costly_places(times > 10, times) == (times > 10)).all()


def slower(*spells: range, count: int = 60, by: float = 40) -> np.ndarray:
    times = 100 + NOISE[:count].copy()
    for spell in spells:
        times[spell] += by
    return times


@pytest.mark.parametrize(
    "spells",
    [
        [range(20, 31)],
        [range(8, 13), range(25, 30), range(45, 52)],
        [range(3, 11), range(30, 60)],  # the last one goes on
        [range(4, 16)],
    ],
)
def test_slower_stretches_are_found_from_their_first_to_their_last_time(spells: list[range]):
    found = spells_of(slower(*spells), 0.1, 0.001).slow
    assert [(one.start, one.stop) for one in found] == [(one.start, one.stop) for one in spells]


@pytest.mark.parametrize("spells", [[], [range(20, 30)], [range(30, 60)], [range(12)]])
def test_short_stretches_and_one_change_of_level_are_no_stretches(spells: list[range]):
    assert spells_of(slower(*spells), 0.1, 0.001).slow == ()


@pytest.mark.parametrize("short", [1, 2, 3, 4])
def test_a_slow_start_with_a_short_time_in_it_is_no_stretch(short: int):
    """It was one that began with the second time."""
    times = slower(range(14))
    times[short] -= 40
    assert spells_of(times, 0.1, 0.001).slow == ()


@pytest.mark.parametrize("end", [range(50, 60), range(30, 36)])
def test_a_slow_start_is_no_stretch_but_shows_that_others_are_no_chance(end: range):
    found = spells_of(slower(range(8), end), 0.1, 0.001)
    assert found.slow == [slice(end.start, end.stop)]
    assert not found.is_usual[[*range(8), *end]].any()
    assert np.count_nonzero(found.is_usual) == 52 - len(end)


@pytest.mark.parametrize("single", [0, 59])
def test_a_slow_time_at_an_end_is_no_part_of_a_stretch_close_to_it(single: int):
    """It made the stretch one that lasts from the start, or to the end."""
    times = slower(range(4, 16), range(44, 56))
    times[single] += 40
    assert spells_of(times, 0.1, 0.001).slow == [slice(4, 16), slice(44, 56)]


def test_slow_times_in_no_order_make_no_stretches():
    times = slower(by=0, count=400)
    is_slow = np.random.default_rng(5).random(400) < 0.5
    assert spells_of(times + 40 * is_slow, 0.1, 0.001).slow == ()
    assert spells_of(times + 40 * is_slow, 0.1, 1).slow


def test_stretches_need_times():
    for times in (np.array([]), slower(count=21)):
        assert spells_of(times, 0.1, 0.001).slow == ()


@pytest.mark.parametrize(("count", "high"), [(6, 0), (6, 1), (9, 2), (9, 5), (9, 9)])
def test_the_chance_of_runs_is_their_share_of_all_orders(count: int, high: int) -> None:
    orders = [np.isin(np.arange(count), at) for at in combinations(range(count), high)]
    runs = np.array([np.count_nonzero(np.diff(order)) for order in orders])
    for order, mine in zip(orders, runs.tolist(), strict=True):
        assert chance_of_runs(order) == pytest.approx(np.mean(runs <= mine))
