from __future__ import annotations

from dataclasses import replace

import pytest

from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.trace.schema import RollUp, Trailer
from dsprof.trace.selection import Selection
from tests.factories.trace import MS, header, rank_trace, step, summary, zero_rank


def test_missing_and_unclean_ranks_are_named():
    run = summary(rank_trace(0, 4), rank_trace(2, 4, trailer=None))[Run]
    assert run.missing_ranks == [1, 3]
    assert run.unclean_ranks == [2]
    assert len([*run.trailers]) == 1


def test_cost_is_the_median_over_ranks():
    costs = [(1, 1), (6, 3), (300, 4)]
    trailers = [Trailer(reason="exit", hooks_ns=h * MS, writer_ns=w * MS) for h, w in costs]
    run = summary(*(zero_rank(rank, 3, trailer=one) for rank, one in enumerate(trailers)))
    assert run[Run].cost_shares(run[Steps]) == (pytest.approx(0.01), pytest.approx(0.005))


def test_the_cost_is_that_of_all_steps_and_unknown_where_some_were_chosen():
    trailer = Trailer(reason="exit", hooks_ns=30 * MS, writer_ns=6 * MS)
    hours = {(3600, at): RollUp(at, 3600, at, total_ns=1500 * MS) for at in (0, 3600)}
    rolling = summary(zero_rank(0, 3, trailer=trailer, rollups=hours))
    costs = pytest.approx(0.01), pytest.approx(0.002)
    assert rolling[Run].cost_shares(rolling[Steps]) == costs
    chosen = replace(rolling[Run], selection=Selection(steps=range(2)))
    assert chosen.cost_shares(rolling[Steps]) is None


@pytest.mark.parametrize("fields", [{"trailer": None, "steps": [step(0, 0, 9)]}, {"steps": []}])
def test_cost_is_unknown_without_trailer_or_steps(fields):
    run = summary(rank_trace(**fields))
    assert run[Run].cost_shares(run[Steps]) is None


def test_a_single_device_makes_it_no_cpu_run():
    assert summary(rank_trace(0), rank_trace(1))[Run].is_cpu
    device = rank_trace(1, head=header(1, device="cuda"))
    assert not summary(rank_trace(0), device)[Run].is_cpu
