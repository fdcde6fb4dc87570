from __future__ import annotations

from dsprof.analysis.baseline import Product, Sample
from dsprof.bench.table import described
from tests.factories.baseline import baseline, cost, hiding


def test_an_operation_is_a_line_with_latency_and_bandwidth():
    made = baseline(cost("all_reduce"), cost("barrier", samples=(Sample(0, 1e5),)))
    _, reduce, barrier = described(made).splitlines()
    # 4 MB at 1 ns a byte after 100 us
    assert reduce.split() == ["all_reduce", "world", "2", "100", "µs", "3.81", "MiB", "976", "MB/s"]
    assert barrier.split() == ["barrier", "world", "2", "100", "µs"]


def test_one_size_tells_no_latency():
    _, line = described(baseline(cost(samples=(Sample(1024, 2e5),)))).splitlines()
    assert line.split() == ["all_reduce", "world", "2", "-", "1.00", "KiB", "5.12", "MB/s"]


def test_of_several_nodes_the_slowest_is_shown():
    nodes = [
        cost(group="node", ranks=ranks, latency_ns=latency)
        for ranks, latency in (((0, 1), 1e5), ((2, 3), 9e5), ((4, 5), 2e5))
    ]
    _, line = described(baseline(*nodes)).splitlines()
    assert line.split()[3:5] == ["900", "µs"]


def test_products_are_lines_with_their_rate():
    products = (Product(precision="fp32", width=512, time_ns=3.6e6),)
    *_, head, line = described(baseline(products=products)).splitlines()
    assert head == "Matrix products of 512 x 512, one rank while all multiply:"
    assert line.split() == ["fp32", "74.6", "GFLOP/s"]


def test_what_was_not_measured_and_what_hiding_costs_is_said():
    made = baseline(unsupported={"all_to_all": "no"}, hiding=hiding(0.1, 0.25))
    assert "all_to_all: not measured: no" in described(made)
    assert "10 % to 25 % of the time that overlap saves is lost" in described(made)
