from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.baseline import (
    NOMINAL_CONTENTION,
    SCHEMA_VERSION,
    Baseline,
    Machine,
    OpCost,
    Sample,
)
from dsprof.rules.savings import (
    NOMINAL_NS_PER_BYTE,
    about,
    faster_products_save,
    halving_saves,
    hiding_saves,
    is_hidden,
    joining_saves,
    ns_per_byte,
)
from tests.factories.trace import rank_trace, step, summary, sync

MIB = 1 << 20


def test_a_range_is_a_quarter_to_each_side_of_an_estimate():
    assert about(8) == (6, 10)


def test_a_range_is_as_wide_as_what_is_not_known():
    low, high = about(7, 13)
    assert (low, high) == pytest.approx((7, 13))
    assert about(9.5, 10.5) == (7.5, 12.5)


def test_the_upper_end_is_at_most_twice_the_lower():
    assert about(5, 10) == pytest.approx((5, 10))
    assert about(5, 10.1) is None


@pytest.mark.parametrize("estimate", [(0, 0), (0, 3), (-1, -1), (-2, 1)])
def test_what_may_be_nothing_is_no_saving(estimate):
    assert about(*estimate) is None


def test_fewer_calls_save_the_latency_of_those_that_are_gone():
    # 10 calls of 1 MiB in 20 ms, at 1 ns a byte: 1 ms of each call is latency.
    low, high = joining_saves(20, 10, 10 * MIB, 1, (1.0, 1.0))
    assert (low + high) / 2 == pytest.approx(9 * (2 - MIB / 1e6))


def test_no_fewer_calls_save_nothing():
    assert joining_saves(20, 10, 10 * MIB, 10, (0.0, 0.0)) is None


def test_calls_that_may_be_bytes_alone_promise_nothing():
    assert joining_saves(20, 10, 10 * MIB, 1, (0.0, 2.0)) is None


@pytest.mark.parametrize(
    ("blocked", "behind", "parts", "hidden"),
    [(8, 100, 4, 6), (8, 5, 4, 5), (8, 100, 1, None), (8, 100, 0, None)],
)
def test_hidden_is_all_but_one_part_as_far_as_something_is_computed(blocked, behind, parts, hidden):
    free, contended = NOMINAL_CONTENTION
    expected = hidden and about(hidden * (1 - contended), hidden * (1 - free))
    assert hiding_saves(blocked, behind, parts, BaselineCosts(None)) == expected


@pytest.mark.parametrize(("added", "low"), [(0, 100 / 3), (5, 100 / 3 - 5), (40, 0)])
def test_faster_products_save_their_share_of_the_time(added, low):
    # Twice as fast, and half of the time after the change: two thirds of the time before it.
    expected = about(low, 50)
    found = faster_products_save(100, 2, 0.5, added)
    assert found == (expected and pytest.approx(expected))


def recorded(*calls, baseline: Baseline | None = None):
    """Two ranks with all-reduces of (bytes, ms), 50 ms apart."""
    comm = [
        sync("all_reduce", 50 * n, took, nbytes=size, step=0, seq=n)
        for n, (size, took) in enumerate(calls)
    ]
    ranks = (rank_trace(rank, steps=[step(0, 0, 1000)], comm=comm) for rank in range(2))
    return summary(*ranks).with_part(BaselineCosts(baseline))


def test_the_runs_own_calls_tell_what_a_byte_costs():
    run = recorded((1024, 1.001), (MIB, 2.048), (4 * MIB, 5.194))
    low, high = ns_per_byte(run, "all_reduce", 2)
    assert low == high == pytest.approx(1.0, rel=0.01)


def test_calls_of_one_size_do_not_tell_bytes_from_latency():
    run = recorded((MIB, 2.0), (2 * MIB, 3.0))
    assert ns_per_byte(run, "all_reduce", 2) == (0.0, NOMINAL_NS_PER_BYTE)


def test_then_the_baseline_of_the_machine_does():
    samples = (Sample(0, 1000.0), Sample(MIB, 1000.0 + 3 * MIB))
    cost = OpCost(
        op="all_reduce",
        group="world",
        ranks=(0, 1),
        crosses_nodes=False,
        latency_ns=1000.0,
        ns_per_byte=3.0,
        samples=samples,
    )
    machine = Machine(hosts=("node-a",), world_size=2, backend="gloo", device="cpu")
    baseline = Baseline(schema_version=SCHEMA_VERSION, machine=machine, costs=(cost,))
    run = recorded((MIB, 2.0), baseline=baseline)
    assert ns_per_byte(run, "all_reduce", 2) == pytest.approx((3.0, 3.0))


def test_hidden_is_what_is_known_to_hold_little_of_a_step():
    steps = recorded((MIB, 2.0))[Steps]
    assert is_hidden(2.0, steps, share=0.01)
    assert not is_hidden(20.0, steps, share=0.01)
    assert not is_hidden(0.0, summary(rank_trace())[Steps], share=0.01)


@pytest.mark.parametrize(
    ("slope", "saved_ms"),
    [((2.0, 2.0), 1.0), ((9.0, 9.0), 1.5), ((0.0, 2.0), None), ((0.0, 0.0), None)],
    ids=["half of its bytes", "no more than half of the wait", "not known", "latency only"],
)
def test_half_of_the_bytes_saves_half_of_their_time(slope, saved_ms):
    """A million bytes that block 3 ms."""
    expected = None if saved_ms is None else pytest.approx((0.75 * saved_ms, 1.25 * saved_ms))
    assert halving_saves(3.0, 1e6, slope) == expected
