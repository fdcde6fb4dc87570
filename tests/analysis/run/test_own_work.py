from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.own_work import own_work_ns, own_work_of_steps
from dsprof.trace.lines import Line
from tests.factories.trace import MS, summary, sync, zero_rank


def test_own_work_is_the_step_without_the_communication_that_blocks_it() -> None:
    steps = summary(*(zero_rank(rank, comm_ms=ms) for rank, ms in enumerate((10, 30))))[Steps]
    own = {0: pytest.approx(90 * MS), 1: pytest.approx(70 * MS)}
    assert own_work_ns(steps, (0, 1)) == own


def test_own_work_is_not_known_of_some_ranks_alone() -> None:
    assert own_work_ns(summary(zero_rank(0))[Steps], (0, 1)) == {}
    short = zero_rank(1, steps=20)
    short.steps = short.steps[:2]
    steps = summary(zero_rank(0, steps=20), short)[Steps]
    assert [*own_work_ns(steps, (0,))] == [0]
    assert own_work_ns(steps, (0, 1)) == {}


def test_of_long_runs_few_steps_are_taken_which_are_of_no_period() -> None:
    def extra(step: int, start: float) -> list[Line]:
        return [sync("recv", start, 40 if step % 4 == 2 else 10, step=step)]

    steps = summary(zero_rank(0, steps=66, comm_ms=0.1, extra=extra))[Steps]
    every = own_work_of_steps(steps, (0,), most=100)[0]
    some = own_work_of_steps(steps, (0,), most=16)[0]
    assert (len(every), len(some)) == (64, 16)
    assert len({*some.tolist()}) == len({*every.tolist()}) == 2
