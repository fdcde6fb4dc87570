from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.run.omitted_calls import Sized, saved_ns
from tests.factories.trace import group, rank_trace, step, summary, sync

BARRIERS = {Sized("barrier", 2, "< 4 KiB")}
STEPS = 6


def run(**late):
    """Two ranks that call a barrier and then reduce, 1 ms each, and come 10 ms late to them.

    Who is late is said for each by the number of the step.
    """
    return summary(*(rank(number, late) for number in (0, 1)))


def rank(number, late, **fields):
    comm = []
    for at, op in enumerate(("barrier", "all_reduce") * STEPS):
        is_late = op in late and late[op](at // 2) == number
        waits = op in late and not is_late
        begin, took = 30 * at + 10 * is_late, 1 + 10 * waits
        nbytes = 0 if op == "barrier" else 1 << 20
        comm.append(sync(op, begin, took, nbytes=nbytes, step=at // 2, seq=at))
    steps = [step(n, 60 * n, 60 * (n + 1)) for n in range(STEPS)]
    return rank_trace(number, steps=steps, comm=comm, **fields)


def saved_ms(made, kinds=BARRIERS, *, are_apart=False):
    found = saved_ns(made[Arrivals], range(STEPS), kinds, are_apart=are_apart)
    return found and found / 1e6


def in_turn(number):
    return number % 2


def the_other(number):
    return 1 - number % 2


def test_waits_just_before_a_reduction_move_to_it():
    """Over the whole run both ranks are blocked alike, so none of them is the late one."""
    assert saved_ms(run(barrier=in_turn)) == pytest.approx(1)


def test_waits_that_even_out_before_the_reduction_are_saved():
    """Each rank is late once in each step, so without the barrier they reduce together."""
    made = run(barrier=in_turn, all_reduce=the_other)
    assert saved_ms(made) == pytest.approx(11)
    assert saved_ms(made, are_apart=True) == pytest.approx(1)


def test_waits_for_the_same_rank_add_up_in_the_reduction():
    assert saved_ms(run(barrier=in_turn, all_reduce=in_turn)) == pytest.approx(1)


def test_with_another_group_nothing_is_known_to_even_out():
    """Its calls may synchronise the ranks in between."""
    other = group(id=2, key="0/other/[0, 1]", ranks=[0, 1])
    late = {"barrier": in_turn, "all_reduce": the_other}
    made = [rank(number, late, groups={1: group(2), 2: other}) for number in (0, 1)]
    for trace in made:
        rows = trace.collectives
        rows.group[rows.seq % 2 == 1] = 2
    assert saved_ms(summary(*made)) == pytest.approx(1)


@pytest.mark.parametrize(
    "kind",
    [
        Sized("barrier", 4, "< 4 KiB"),
        Sized("broadcast", 2, "not known"),
        Sized("all_reduce", 2, "< 4 KiB"),
    ],
)
def test_without_such_calls_nothing_is_known(kind):
    assert saved_ms(run(), {kind}) is None
