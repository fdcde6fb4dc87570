from __future__ import annotations

import msgspec
import pytest

from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.analysis.baseline import (
    NOMINAL_CONTENTION,
    Product,
    Sample,
    fitted,
    read_baseline,
)
from dsprof.errors import ConfigError
from tests.factories.baseline import baseline, cost, hiding


def test_a_line_is_found_again():
    samples = [Sample(size, 5_000 + 0.25 * size) for size in (1 << 10, 1 << 16, 1 << 22)]
    latency, slope = fitted(samples)
    assert latency == pytest.approx(5_000)
    assert slope == pytest.approx(0.25)


def test_a_small_message_weighs_as_much_as_a_large_one():
    # Absolute errors would lead the line through the large samples, and the latency below zero.
    samples = [Sample(1_000, 10_000), Sample(2_000, 10_100)]
    samples += [Sample(1 << 24, 2_000_000), Sample(1 << 25, 6_000_000)]
    assert fitted(samples)[0] == pytest.approx(10_000, rel=0.1)


@pytest.mark.parametrize(
    ("samples", "line"),
    [
        ([], (0, 0)),
        ([Sample(0, 700)], (700, 0)),
        ([Sample(100, 700), Sample(1000, 690)], (695, 0)),  # no slower with size: latency alone
        ([Sample(100, 10), Sample(1000, 200)], (0, 0.12)),  # no latency: bytes alone
    ],
)
def test_neither_latency_nor_slope_is_negative(samples, line):
    latency, slope = fitted(samples)
    assert latency == pytest.approx(line[0], rel=0.02)
    assert slope == pytest.approx(line[1], rel=0.1)


def test_costs_lie_on_the_samples_and_beyond_them_on_the_line():
    one = cost(samples=(Sample(1000, 500.0), Sample(2000, 900.0)), ns_per_byte=2.0)
    times = [baseline(one).cost_ns("all_reduce", size, 2) for size in (0, 1000, 1500, 2000, 2100)]
    assert times == [500, 500, 700, 900, 1100]


def test_an_op_is_known_in_every_spelling_and_others_are_not():
    known = baseline(cost("all_gather"))
    assert known.cost_ns("_allgather_base_", 1_000_000, 2) == pytest.approx(1.1e6)
    assert known.cost_ns("all_reduce", 1_000_000, 2) is None


def test_another_group_size_is_scaled_from_the_nearest():
    # All-reduce: 2(n-1)/n carries 1.5 times as much in 4 ranks as in 2; a tree is twice as deep.
    assert baseline(cost(size=2)).cost_ns("all_reduce", 1_000_000, 4) == pytest.approx(1.7e6)
    both = baseline(cost(size=2), cost(size=8, latency_ns=300_000.0))
    assert both.cost_ns("all_reduce", 1_000_000, 8) == pytest.approx(1.3e6)


def test_of_a_broadcast_only_the_latency_grows_with_the_group():
    # The whole message passes each link, whatever the group: 0.1 ms in 4 ranks is two levels.
    known = baseline(cost("broadcast", size=4))
    assert known.cost_ns("broadcast", 1_000_000, 16) == pytest.approx(1.2e6)


def test_without_samples_the_line_is_all():
    assert cost(samples=(), latency_ns=300.0, ns_per_byte=2.0).time_ns(500) == 1300


def test_a_product_of_matrices_counts_a_multiplication_and_an_addition_each():
    assert Product(precision="bf16", width=1000, time_ns=4e6).flops_per_s == 500e9


def test_groups_within_and_across_nodes_are_told_apart():
    within, across = cost(), cost(crosses_nodes=True, latency_ns=900_000.0)
    known = baseline(within, across)
    assert known.cost_ns("all_reduce", 1_000_000, 2, crosses_nodes=True) == pytest.approx(1.9e6)
    assert known.cost_ns("all_reduce", 1_000_000, 2, crosses_nodes=False) == pytest.approx(1.1e6)
    assert baseline(within).cost_ns("all_reduce", 1, 2, crosses_nodes=True) is None


def test_a_group_of_one_costs_nothing_that_is_known():
    assert baseline().cost_ns("all_reduce", 1000, 1) is None


def test_contention_is_what_was_measured_or_a_stated_range():
    assert baseline().contention == NOMINAL_CONTENTION
    assert baseline(hiding=hiding(0.1, 0.3)).contention == (0.1, 0.3)
    assert BaselineCosts().contention == NOMINAL_CONTENTION
    assert BaselineCosts(baseline(hiding=hiding(0.1, 0.3))).contention == (0.1, 0.3)
    assert BaselineCosts().cost_ns("all_reduce", 1000, 2) is None


def test_merging_keeps_the_baseline_wherever_it_is():
    known = BaselineCosts(baseline())
    assert BaselineCosts().merge(known) == known.merge(BaselineCosts()) == known


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "baseline.json"
    made = baseline(cost(), cost("broadcast", 4), hiding=hiding(0.1, 0.2))
    path.write_bytes(msgspec.json.encode(made))
    assert read_baseline(path) == made


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a baseline of dsprof"),
        (b"[1, 2]", "not a baseline of dsprof"),
        (b"[" * 100_000, "not a baseline of dsprof"),
        (b"\xff\xfe", "not a baseline of dsprof"),
        (msgspec.json.encode(baseline())[:-30], "not a baseline of dsprof"),
        (msgspec.json.encode(baseline(schema_version=9)), "schema version 9"),
        (msgspec.json.encode(baseline(cost(latency_ns=-1.0))), "latency_ns"),
        (msgspec.json.encode(baseline(cost(size=1))), "all_reduce in a group of 1"),
        (
            msgspec.json.encode(baseline(cost(samples=(Sample(5, 1.0), Sample(2, 1.0))))),
            "do not ascend",
        ),
    ],
)
def test_a_broken_baseline_is_refused_in_one_line(tmp_path, data, message):
    path = tmp_path / "baseline.json"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=message) as refused:
        read_baseline(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)
