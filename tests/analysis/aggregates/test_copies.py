from __future__ import annotations

from dsprof.analysis.aggregates.copies import Copies, CopySums
from tests.factories.trace import MS, copy, rank_trace, step, summary


def copying(rank: int = 0, **fields):
    copies = [
        copy(0, 3, step=0, phase="backward", nbytes=10),
        copy(5, 4, step=0, phase="backward", nbytes=20),
        copy(50, 1, step=0, phase="step", what="parameter", direction="to device", nbytes=40),
        copy(90, 1, step=-1, phase="backward", nbytes=80),
    ]
    return rank_trace(rank, steps=[step(0, 0, 100)], copies=copies, **fields)


def test_copies_are_summed_by_what_direction_and_phase():
    assert summary(copying())[Copies].rows == {
        ("gradient", "to host", "backward"): CopySums(2, 1, 30, 7 * MS),
        ("parameter", "to device", "step"): CopySums(1, 1, 40, 1 * MS),
    }


def test_ranks_add_up_in_any_grouping():
    one, two, three = (summary(copying(rank, world_size=3))[Copies] for rank in range(3))
    assert one.merge(two).merge(three) == one.merge(two.merge(three))
    assert one.merge(two).rows["gradient", "to host", "backward"] == CopySums(4, 2, 60, 14 * MS)
