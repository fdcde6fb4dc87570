from __future__ import annotations

import numpy as np
import pytest

from dsprof.analysis.rank.profiled_steps import covered_steps
from dsprof.trace.device_activity import DeviceActivity, Profile
from tests.factories.trace import ns, rank_trace, step

NOTHING = np.zeros(0, np.int64)
IDLE = DeviceActivity([""], *[NOTHING] * 6, NOTHING > 0)


@pytest.mark.parametrize(
    ("start", "end", "covered"),
    [
        (0, 300, {0, 1, 2}),
        (102, 200, {1}),  # a fiftieth of it may be missing
        (102.1, 200, set()),
        (101, 199, {1}),
        (101, 198.9, set()),
        (101, 299.5, {1, 2}),
    ],
)
def test_a_step_is_covered_of_which_a_fiftieth_is_missing_at_most(start, end, covered):
    trace = rank_trace(steps=[step(n, 100 * n, 100 * n + 100) for n in range(3)])
    trace.profile = Profile(IDLE, ns(start), ns(end), {}, is_tied=True, is_sampled=False)
    assert covered_steps(trace) == covered


@pytest.mark.parametrize(("is_tied", "is_sampled"), [(False, False), (True, True)])
def test_a_profile_on_another_clock_or_with_gaps_covers_none(is_tied, is_sampled):
    trace = rank_trace(steps=[step(0, 0, 100)])
    trace.profile = Profile(IDLE, 0, ns(100), {}, is_tied=is_tied, is_sampled=is_sampled)
    assert covered_steps(trace) == set()
