from __future__ import annotations

import numpy as np
import pytest

from dsprof.analysis.run.lateness import Lateness
from dsprof.analysis.run.onset import Onset, onset


def late(delays: list[int]) -> Lateness:
    """Rank 0 waits for rank 1."""
    waited, nothing = np.array([delays, [0] * len(delays)], np.int64), np.zeros(2, np.int64)
    steps = np.arange(10, 10 + len(delays))
    count = len(delays)
    return Lateness((0, 1), steps, waited, *[nothing] * 4, count, count, 1, None, 0, nothing)


def test_the_first_late_step_is_named_with_the_delay_from_there_on():
    assert onset(late([0, 1] * 10 + [40, 42] * 20), [1]) == Onset(30, 41)


@pytest.mark.parametrize(
    "delays",
    [
        [40, 42] * 30,  # from the beginning
        [20, 21] * 15 + [60, 61] * 15,  # it was late before
        [40, 42] * 15 + [0, 1] * 15,  # it recovers
        [0, 1] * 10 + [40, 42] * 20 + [0, 1] * 10,  # the same, after it was not late at first
        [0] * 56 + [40] * 4,  # too few steps
        [*[0] * 10, *range(0, 100, 2)],  # it is later and later
        [],
    ],
)
def test_a_rank_that_was_late_before_or_is_not_later_has_no_onset(delays):
    assert onset(late(delays), [1]) is None
