"""Whose a collective is, where several engines are in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsprof.analysis.rank.engine_owners import owners, parts
from dsprof.trace.rank_trace import RankTrace
from tests.factories.trace import engine, rank_trace, span, step, sync


def run(takers: str, sent: list[tuple[int, int]], **fields: Any) -> RankTrace:
    """A rank whose step n engine `takers[n]` took, "-" for none; `sent` as (step, engine)."""
    steps = [step(number, 10 * number, 10 * number + 10) for number in range(len(takers))]
    for one, taker in zip(steps, takers, strict=True):
        one.engine = -1 if taker == "-" else int(taker)
    comm = [sync("all_reduce", 1, 1, step=number, engine=owner) for number, owner in sent]
    given = {"engines": {0: engine(), 1: engine(), 2: engine()}, **fields}
    return rank_trace(comm=comm, steps=steps, **given)


def test_a_phase_tells_whose_it_is_and_the_step_where_there_is_none():
    trace = run("0101", [(0, 1), (1, 1), (0, -1), (3, -1), (9, -1)])
    assert owners(trace, parts(trace, np.arange(4))).tolist() == [1, 1, 0, 1, -1]


def test_an_engine_has_what_others_step_over_and_no_half_of_a_step():
    trace = run("110101", [(2, 1)])
    found = {part.number: part for part in parts(trace, np.arange(2, 6))}
    assert found[0].steps.tolist() == [4]  # that of step 2 began in step 0
    assert found[0].spans.tolist() == [3, 4]
    assert found[1].steps.tolist() == [3, 5]
    assert found[1].rows(trace).tolist() == [True]
    assert not found[0].rows(trace).any()


def test_an_engine_without_steps_has_its_phases_in_all_of_them():
    trace = run("01", [(1, 2)], spans=[span("forward", 12, 13, 1, engine=2)])
    (last,) = [part for part in parts(trace, np.arange(2)) if not part.trains]
    assert (last.number, last.steps.tolist()) == (2, [0, 1])
    assert last.rows(trace).tolist() == [True]
    assert last.holds(trace.spans[0])


@pytest.mark.parametrize(
    ("takers", "engines", "number"),
    [("00", {0: engine()}, 0), ("00", {}, -1), ("--", {0: engine(), 1: engine()}, -1)],
    ids=["one", "none", "steps of the program"],
)
def test_else_there_is_one_part_with_everything(takers, engines, number):
    trace = run(takers, [(0, 1), (1, -1)], engines=engines)
    (part,) = parts(trace, np.arange(2))
    assert (part.number, part.rows(trace).tolist()) == (number, [True, True])
    assert set(owners(trace, [part]).tolist()) == {-1}
