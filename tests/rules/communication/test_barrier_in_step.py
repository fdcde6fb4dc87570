from __future__ import annotations

import pytest

from dsprof.analysis.rank import sampling
from dsprof.findings.finding import Status
from dsprof.rules.communication.barrier_in_step import BarrierInStep
from dsprof.trace.schema import Site
from tests.factories.trace import (
    assert_reached_at,
    group,
    header,
    rank_trace,
    said,
    step,
    sync,
    zero_rank,
)

RULE = BarrierInStep()


def ranks(*barrier_ms: float, every: int = 1, **fields):
    """A run in whose steps each rank is held by a barrier for so long."""

    def loop(blocked_ms: float):
        def extra(number, start):
            if number % every:
                return []
            return [sync("barrier", start + 91, blocked_ms, nbytes=0, step=number, site=7)]

        return extra

    sites = {7: Site(id=7, file="train.py", line=12)}
    return [
        zero_rank(rank, extra=loop(ms), sites=sites, **fields) for rank, ms in enumerate(barrier_ms)
    ]


def test_a_barrier_in_each_step_fails_with_its_line():
    finding = said(RULE, *ranks(3, 4))
    assert finding.status is Status.FAIL
    assert (
        "1 barrier per step and rank: blocked time 3.50 ms (3.5 % of the step)" in finding.summary
    )
    assert finding.saving_ms_per_step == pytest.approx((0.75 * 3.25, 1.25 * 3.25))
    assert "train.py:12" in finding.evidence[0].rows[0]
    assert finding.evidence[0].rows[0][4:] == (1.0, 0, 3.5, 3.0)


@pytest.mark.parametrize("second_ms", [4, 60])
def test_barriers_without_another_collective_may_order_files(second_ms):
    """As in a job that prepares data: no gradient reduction keeps its ranks together."""

    def barriers(rank, ms):
        steps = [step(number, 100 * number, 100 * (number + 1)) for number in range(6)]
        comm = [sync("barrier", 100 * n + 30, ms, nbytes=0, step=n) for n in range(6)]
        return rank_trace(rank, steps=steps, comm=comm)

    finding = said(RULE, barriers(0, 3), barriers(1, second_ms))
    assert "orders nothing" in finding.action
    assert "gradient" not in finding.action
    assert "next collective" not in finding.cause


def test_a_library_that_calls_the_barrier_is_named():
    """The program has no barrier to remove."""
    traces = ranks(3, 4)
    for trace in traces:
        trace.sites[7].file = "/opt/lib/python3.11/site-packages/trainer/utils/sync.py"
    finding = said(RULE, *traces)
    assert finding.cause == "trainer calls a barrier in the training loop, at utils/sync.py:12."
    assert finding.fix == "Find what makes trainer call it"
    assert "sync_dist" not in finding.action
    for trace in traces:
        trace.sites[7].file = "/opt/lib/python3.11/site-packages/lightning/fabric/distributed.py"
    assert "on_step=False, on_epoch=True" in said(RULE, *traces).action


def test_calls_are_those_of_all_steps_where_a_sample_of_steps_is_kept(monkeypatch):
    monkeypatch.setattr(sampling, "_MOST_STEPS", 100)
    finding = said(RULE, *ranks(3, 4, steps=1000))
    assert (
        "1 barrier per step and rank: blocked time 3.50 ms (3.5 % of the step)" in finding.summary
    )


def test_calls_are_those_of_each_rank_where_one_ends_early():
    """Of a rolling recording each rank has newest steps of its own."""
    whole, early = ranks(3, steps=100)[0], ranks(3, 3, steps=50)[1]
    whole.newest_from, early.newest_from = 80, 30
    finding = said(RULE, whole, early)
    assert "1 barrier per step and rank: blocked time 3.00 ms (3 % of the step)" in finding.summary


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, *ranks(3, 4), calls_per_step=1.0, saved_share=0.024375)


def test_a_barrier_that_waits_for_a_late_rank_saves_nothing():
    finding = said(RULE, *ranks(8, 0.1))
    assert finding.status is Status.INFO
    assert finding.saving_ms_per_step is None
    assert "waiting for a late rank" in finding.cause


@pytest.mark.parametrize(("slowest", "waits"), [(6.9, False), (7.1, True)])
def test_a_barrier_is_a_wait_if_it_holds_four_times_as_long_as_its_last_rank(slowest, waits):
    finding = said(RULE, *ranks(slowest, 1))
    assert ("waiting for a late rank" in finding.cause) is waits


def test_waiting_for_one_late_rank_is_not_promised():
    assert said(RULE, *ranks(8, 2)).saving_ms_per_step == pytest.approx((1.5, 2.5))


def test_waiting_in_turn_moves_to_the_next_collective():
    """Over the whole run all ranks are blocked alike."""

    def in_turn(rank):
        steps = [step(number, 100 * number, 100 * (number + 1)) for number in range(6)]
        comm = []
        for n in range(6):
            ms = 10 if n % 2 == rank else 0.1
            comm.append(sync("barrier", 100 * n + 90 - ms, ms, nbytes=0, step=n, seq=2 * n))
            comm.append(sync("all_reduce", 100 * n + 90, 5, step=n, seq=2 * n + 1))
        return rank_trace(rank, steps=steps, comm=comm)

    finding = said(RULE, in_turn(0), in_turn(1))
    assert "blocked time 5.05 ms" in finding.summary
    assert (finding.status, finding.saving_ms_per_step) == (Status.INFO, None)
    assert "in the next collective" in finding.cause


def test_part_of_the_waiting_may_be_saved():
    assert said(RULE, *ranks(5, 2)).saving_ms_per_step == pytest.approx((2, 3.5))


def test_a_barrier_now_and_then_passes():
    assert said(RULE, *ranks(3, 3, every=5)).status is Status.PASS


def test_no_barrier_passes():
    assert said(RULE, zero_rank(0), zero_rank(1)).status is Status.PASS


def test_a_device_whose_waits_were_not_seen_is_told_without_figures():
    finding = said(RULE, *ranks(3, head=header(device="cuda", backend="nccl")))
    assert finding.status is Status.INFO
    assert "not measured" in finding.summary


def test_one_rank_alone_is_not_applicable():
    assert said(RULE, *ranks(3, groups={1: group(1)})).status is Status.NOT_APPLICABLE
