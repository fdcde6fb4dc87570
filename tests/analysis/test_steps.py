from __future__ import annotations

import numpy as np
import pytest

from dsprof.analysis.steps import in_steps, measured_rows, measured_steps, warmup_steps
from tests.factories.trace import rank_trace, step, sync


@pytest.mark.parametrize(
    ("recorded", "left_out"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (1000, 2)]
)
def test_warmup_leaves_a_step_to_measure(recorded, left_out):
    assert warmup_steps(recorded) == left_out


def test_rows_before_training_in_warmup_and_after_it_are_not_measured():
    steps = [step(n, n * 10, n * 10 + 10) for n in range(4)]
    comm = [sync("all_reduce", 0, 1, step=n) for n in (-1, 0, 1, 2, 3, 4)]
    trace = rank_trace(steps=steps, comm=comm)
    assert measured_steps(trace).tolist() == [2, 3]
    assert measured_rows(trace).tolist() == [3, 4]


def test_no_step_holds_no_row():
    assert not in_steps(np.array([-1, 0, 7]), np.array([], np.int64)).any()
