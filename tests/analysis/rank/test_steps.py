from __future__ import annotations

import numpy as np
import pytest

from dsprof.analysis.rank.steps import (
    counted_steps,
    detailed_steps,
    in_steps,
    measured_rows,
    measured_steps,
    places,
    warmup_steps,
)
from tests.factories.trace import counters, header, rank_trace, step, sync


@pytest.mark.parametrize(
    ("recorded", "left_out"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (1000, 2)]
)
def test_warmup_leaves_a_step_to_measure(recorded, left_out):
    assert warmup_steps(recorded) == left_out


@pytest.mark.parametrize("numbers", [[], [4], [4, 5, 6], [4, 6, 7], [-3, 5, 2**40]])
def test_places_of_steps(numbers):
    step = np.array([-(2**31), -3, 0, 4, 5, 6, 7, 9], np.int32)
    place, found = places(step, np.array(numbers, np.int64))
    assert found.tolist() == [one in numbers for one in step.tolist()]
    assert [numbers[at] for at in place[found]] == step[found].tolist()


def test_rows_before_training_in_warmup_and_after_it_are_not_measured():
    steps = [step(n, n * 10, n * 10 + 10) for n in range(4)]
    comm = [sync("all_reduce", 0, 1, step=n) for n in (-1, 0, 1, 2, 3, 4)]
    trace = rank_trace(steps=steps, comm=comm)
    assert measured_steps(trace).tolist() == [2, 3]
    assert measured_rows(trace).tolist() == [3, 4]


def test_no_step_holds_no_row():
    assert not in_steps(np.array([-1, 0, 7]), np.array([], np.int64)).any()


def ten_steps(*counted: int, **config):
    return rank_trace(
        steps=[step(n, n * 10, n * 10 + 10) for n in range(10)],
        counters=[counters(n) for n in counted],
        head=header(config=config),
    )


@pytest.mark.parametrize(
    ("counted", "measured"),
    [
        ((), [2, 3, 4, 5, 6, 7, 8, 9]),
        ((5, 6, 7, 8, 9), [2, 3, 4]),
        ((0, 1, 2, 3, 4, 8, 9), [5, 6, 7]),
        ((2, 3, 4, 5, 6, 7, 8, 9), [1]),
    ],
    ids=["whole", "budget", "window", "window in warm-up"],
)
def test_steps_in_full_detail_are_measured_alone(counted, measured):
    trace = ten_steps(*counted)
    assert measured_steps(trace).tolist() == measured
    assert detailed_steps(trace).tolist() == measured


@pytest.mark.parametrize(
    ("kept", "newest_from", "measured"),
    [
        ([1, 4, 7, 8, 12, 14, 16, 18, 19], 18, [18, 19]),
        ([1, 4, 7, 8, 12, 14, 16], 18, [8, 12, 16]),  # slow ones beside each fourth
        ([9, 10, 11, 12, 13], 18, [11, 12, 13]),
        ([9, 11], 18, [11]),
    ],
    ids=["newest", "past", "without a gap", "only slow ones"],
)
def test_of_past_steps_those_kept_for_being_slow_are_not_measured(
    kept: list[int], newest_from: int, measured: list[int]
) -> None:
    trace = rank_trace(steps=[step(n, n * 10, n * 10 + 10) for n in kept])
    trace.newest_from = newest_from
    assert measured_steps(trace).tolist() == measured


def test_counted_steps_are_measured_where_there_are_no_others():
    trace = ten_steps(*range(10))
    assert measured_steps(trace).tolist() == [2, 3, 4, 5, 6, 7, 8, 9]
    assert detailed_steps(trace).tolist() == []


def test_steps_outside_the_window_count_as_counted_even_without_counters():
    trace = ten_steps(start_step=2, steps=6, every=2)
    assert counted_steps(trace).tolist() == [0, 1, 3, 5, 7, 8, 9]
    assert measured_steps(trace).tolist() == [2, 4, 6]


def test_a_window_of_every_step_begins_at_its_start():
    assert counted_steps(ten_steps(start_step=7, every=1)).tolist() == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("config", [{"every": 0}, {"start_step": "two"}, {"steps": "all"}])
def test_a_window_that_makes_no_sense_is_none(config):
    assert counted_steps(ten_steps(**config)).tolist() == []
