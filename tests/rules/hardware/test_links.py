from __future__ import annotations

from dataclasses import replace
from functools import reduce

import pytest

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.run.transfer_speed import Path
from dsprof.analysis.summary import RankClock
from dsprof.environment import EnvSnapshot
from dsprof.environment.machine import Adapter
from dsprof.rules.hardware.links import LinkModel
from tests.factories import machines
from tests.factories.trace import header, rank_trace

HUGE = 1 << 40
GB = 1e9


def facts(machine, ranks=8, hosts=1, backend="nccl") -> EnvironmentFacts:
    def of(rank):
        host = f"node-{rank * hosts // ranks}"
        head = header(rank, ranks, host=host, backend=backend, device="cuda")
        trace = rank_trace(rank, ranks, head=head, environment=EnvSnapshot(**machine))
        return EnvironmentFacts.collect(trace, RankClock())

    return reduce(EnvironmentFacts.merge, map(of, range(ranks)))


def expected(facts, op="all_reduce", size=8, nodes=1, nbytes=HUGE):
    return LinkModel.of(facts).expected(Path(op, "world", size, nodes, ""), nbytes)


def test_links_within_a_host_are_known_by_the_accelerators():
    found = expected(facts(machines.h100_infiniband()))
    assert found is not None
    assert found.source == "NVLink 4"
    assert found.busbw == pytest.approx(361 * GB, rel=1e-3)


def test_small_messages_are_held_to_less():
    found = expected(facts(machines.h100_infiniband()), nbytes=32_000_000)
    assert found is not None
    assert found.busbw == pytest.approx(180.5 * GB)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H100 PCIe",
        "NVIDIA H100 NVL",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA GH200 480GB",
        "NVIDIA H800",
        "NVIDIA A100-PCIE-40GB",
        "NVIDIA A40",
        "NVIDIA GB200",
        "",
    ],
)
def test_accelerators_whose_links_a_name_does_not_tell_have_no_model(name):
    machine = {"accelerators": machines.nodes(8, name), "machine": {"kernel": "6"}}
    assert expected(facts(machine)) is None


def test_links_to_each_peer_add_up():
    known = facts({"gpus": ["AMD Instinct MI300X"] * 8})
    eight, two = expected(known), expected(known, size=2)
    assert eight is not None
    assert two is not None
    assert eight.busbw == pytest.approx(7 * two.busbw)


@pytest.mark.parametrize(
    ("name", "count", "size", "is_known"),
    [
        ("NVIDIA A100-SXM4-80GB", 8, 2, True),  # by switches
        ("NVIDIA A100-SXM4-80GB", 4, 2, False),  # wired to each other
        ("Tesla V100-SXM2-32GB", 8, 8, True),
        ("Tesla V100-SXM2-32GB", 8, 2, False),
    ],
)
def test_a_part_of_gpus_without_switches_has_fewer_links(name, count, size, is_known):
    machine = {"accelerators": machines.nodes(count, name), "machine": {"kernel": "6"}}
    assert (expected(facts(machine, ranks=count), size=size) is not None) == is_known


@pytest.mark.parametrize(
    ("op", "reached"), [("all_reduce", 150), ("all_gather", 80), ("reduce_scatter", 80)]
)
def test_what_goes_round_a_ring_sends_at_the_rate_of_a_host(op, reached):
    known = LinkModel.of(facts(machines.h100_infiniband(), ranks=16, hosts=2))
    slow = replace(known, between_bytes_per_s=10 * GB)
    found = slow.expected(Path(op, "world", 16, 2, ""), HUGE)
    assert found is not None
    assert found.busbw == pytest.approx(reached * GB, rel=1e-3)


def test_across_hosts_all_adapters_of_a_host_send_for_all_its_ranks():
    # 8 x 48 GB/s a host carry half of the array: 384 x (15/16) / (1/2), more than NVLink does.
    known = facts(machines.h100_infiniband(), ranks=16, hosts=2)
    both = expected(known, size=16, nodes=2)
    assert both is not None
    assert both.source == "NVLink 4"
    four = facts(machines.h100_infiniband(), ranks=32, hosts=4)
    across = expected(four, size=32, nodes=4)
    assert across is not None
    assert across.source == "NVLink 4"
    lone = expected(known, size=2, nodes=2)  # one rank a host has one adapter
    assert lone is not None
    assert lone.source == "InfiniBand"
    assert lone.busbw == pytest.approx(48 * GB, rel=1e-3)


def test_an_all_to_all_sends_most_to_other_hosts():
    found = expected(facts(machines.h100_infiniband(), ranks=16, hosts=2), "all_to_all", 16, 2)
    assert found is not None
    assert found.busbw == pytest.approx(48 * GB * 15 / 8, rel=1e-3)


def test_ethernet_is_shared_by_the_ranks_of_a_host():
    machine = machines.h100_infiniband() | {
        "adapters": [],
        "network_devices": ["docker0 up 999999 Mbit/s", "eth0 up 100000 Mbit/s", "eth1 down"],
    }
    found = expected(facts(machine, ranks=4, hosts=2), size=4, nodes=2)
    assert found is not None
    assert found.source == "TCP"
    assert found.busbw == pytest.approx(12.5 * GB * 0.4 * 3 / 4 * 2, rel=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"adapters": [], "network_devices": ["eth0 up"]},  # virtual machines tell no speed
        {"adapters": machines.slingshot()["adapters"]},
        {"adapters": []},
        {"adapters": [Adapter("mlx5_0:1", "mlx5_core", "InfiniBand", "4.0.0 Gb/sec", "ACTIVE")]},
        {"adapters": [], "network_devices": [f"eth0 up {'9' * 5000} Mbit/s"]},
    ],
)
def test_a_network_that_does_not_tell_its_rate_has_no_model(changes):
    machine = machines.h100_infiniband() | changes
    assert expected(facts(machine, ranks=16, hosts=2), size=16, nodes=2) is None


def test_ethernet_of_a_host_that_recorded_no_devices_is_unknown():
    unseen = facts({"accelerators": machines.h100_infiniband()["accelerators"]}, 16, 2)
    assert expected(unseen, size=16, nodes=2) is None


def test_other_backends_have_no_model():
    assert expected(facts(machines.h100_infiniband(), backend="gloo")) is None
    assert expected(EnvironmentFacts()) is None
