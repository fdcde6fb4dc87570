from __future__ import annotations

import pytest

from dsprof.analysis.rank.pace import Pace, is_slow, others_pace, pace
from tests.factories.trace import MS, enqueued, header, issued, rank_trace, span, step, sync


def of(before: float, between: float, after: float = 0) -> Pace:
    return Pace(*(round(part * MS) for part in (before, between, after)))


def test_the_parts_of_a_step_are_told_without_waits():
    """Of each step: first collective from 20 to 30, one from 60 waited for from 70 to 75."""
    comm = []
    for n in range(4):
        at = 100 * n
        comm.append(sync("all_reduce", at + 20, 10, seq=2 * n, step=n))
        comm.append(
            issued("all_reduce", at + 60, at + 75, wait=at + 70, waited=at + 75, step=n, seq=9 + n)
        )
    trace = rank_trace(comm=comm, steps=[step(n, 100 * n, 100 * n + 100) for n in range(4)])
    assert pace(trace) == of(20, 30, 35)


def test_what_precedes_each_backward_of_accumulated_gradients_is_before():
    """Backwards from 20 to 30 and 60 to 80, of the time between 10 in a wait; a step to 90."""
    comm, spans = [], []
    for n in range(4):
        at = 100 * n
        comm.append(sync("all_reduce", at + 30, 10, seq=n, step=n))
        times = (("backward", 20, 30), ("backward", 60, 80), ("step", 80, 90))
        spans += [span(name, at + begin, at + end, n) for name, begin, end in times]
    steps = [step(n, 100 * n, 100 * n + 100) for n in range(4)]
    assert pace(rank_trace(comm=comm, spans=spans, steps=steps)) == of(40, 40, 10)


def test_a_device_without_times_has_no_pace():
    comm = [enqueued("all_reduce", 100 * n + 20, step=n) for n in range(4)]
    steps = [step(n, 100 * n, 100 * n + 100) for n in range(4)]
    assert pace(rank_trace(head=header(device="cuda"), comm=comm, steps=steps)) is None
    assert pace(rank_trace(steps=steps)) is None


def test_others_are_their_median_and_known_whole():
    paces = {0: of(10, 20), 1: of(30, 40), 2: of(20, 60), 3: None}
    assert others_pace(paces, [0, 1, 2]) == of(20, 40)
    assert others_pace(paces, [0, 3]) is None


@pytest.mark.parametrize(
    ("mine", "slow"),
    [
        (of(40, 110), True),  # behind the first collective it loses 50
        (of(90, 60), False),  # before it, and keeps pace behind
        (of(90, 66), False),
        (of(90, 110), True),
        (of(90, 95), True),  # both grow: 2.25 and 1.6 times
        (of(90, 78), None),  # neither alike nor apart
        (of(60, 60), None),  # explains too little
    ],
)
def test_who_loses_time_behind_the_first_collective_is_slow(mine, slow):
    assert is_slow(mine, of(40, 60), 30 * MS) is slow


def test_with_little_between_collectives_nothing_is_told():
    assert is_slow(of(90, 2), of(40, 2), 30 * MS) is None
    assert is_slow(of(90, 0, 50), of(40, 0, 50), 30 * MS) is None
