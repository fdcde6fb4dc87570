"""What accelerators are, by the names that drivers and torch give them."""

from __future__ import annotations

import pytest

from dsprof.environment.machine import Accelerator
from dsprof.rules.environment.platform import linked, multicast, several_hosts
from dsprof.rules.hardware.hosts import architectures, is_seen, kind_of, models
from tests.factories import machines
from tests.factories.environment import facts_of, rank_trace


@pytest.mark.parametrize(
    ("name", "link"),
    [
        ("NVIDIA GB200", "switch"),
        ("NVIDIA B200", "switch8"),
        ("NVIDIA H100 80GB HBM3", "switch8"),
        ("NVIDIA H200", "switch8"),
        ("NVIDIA H20", "switch8"),
        ("NVIDIA H100 PCIe", "pcie"),
        ("NVIDIA H100 NVL", ""),
        ("NVIDIA GH200 480GB", ""),
        ("NVIDIA A100-SXM4-80GB", "direct"),
        ("NVIDIA A800-SXM4-80GB", "direct"),
        ("NVIDIA A100 80GB PCIe", ""),
        ("NVIDIA A100-PCIE-40GB", ""),
        ("Tesla V100-SXM2-32GB", "direct"),
        ("Tesla V100-PCIE-16GB", "pcie"),
        ("NVIDIA L40S", "pcie"),
        ("NVIDIA A10G", "pcie"),
        ("Tesla T4", "pcie"),
        ("NVIDIA RTX A6000", "pcie"),
        ("NVIDIA GeForce RTX 4090", "pcie"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "pcie"),
        ("AMD Instinct MI250X", "direct"),
        ("AMD Instinct MI300X", "direct"),
        ("gfx942", "direct"),
        ("gfx950", "direct"),
    ],
)
def test_links_by_name(name, link):
    (model,) = models(facts_of(rank_trace(0, gpus=[name])))
    assert model is not None
    assert model.link == link


@pytest.mark.parametrize("name", ["", "NVIDIA A1000 Laptop", "Gaudi3", "NVIDIA X999"])
def test_other_names_are_not_guessed(name):
    assert models(facts_of(rank_trace(0, gpus=[name]))) == [None]


def answers(ask, accelerators, **variables):
    machine = machines.h100_infiniband() | {"accelerators": accelerators}
    return ask(facts_of(rank_trace(0, variables, **machine)))


def test_one_accelerator_is_linked_to_none():
    assert answers(linked, machines.nodes(1, "NVIDIA H100 80GB HBM3")) is False
    assert answers(linked, machines.nodes(2, "NVIDIA H100 80GB HBM3")) is True
    assert answers(linked, machines.nodes(2, "NVIDIA H100 NVL")) is None


@pytest.mark.parametrize(
    ("count", "name", "expected"),
    [
        (8, "NVIDIA H100 80GB HBM3", True),
        (4, "NVIDIA H100 80GB HBM3", False),  # such boards have no switches
        (4, "NVIDIA GB200", True),
        (8, "NVIDIA A100-SXM4-80GB", False),
        (8, "Brand New 1", None),
    ],
)
def test_switches_that_reduce(count, name, expected):
    assert answers(multicast, machines.nodes(count, name)) is expected


@pytest.mark.parametrize(
    ("driver", "link", "kind"),
    [
        ("mlx5_core", "InfiniBand", "infiniband"),
        ("mlx5_core", "Ethernet", "roce"),
        ("efa", "Unspecified", "efa"),
        ("cxi", "Slingshot", "slingshot"),
        ("", "", ""),
    ],
)
def test_networks_by_driver_and_link(driver, link, kind):
    assert kind_of(driver, link) == kind


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, True),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, False),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, True),
        ({"SLURM_NNODES": "1"}, False),
        ({"SLURM_NNODES": "4"}, True),
        ({"WORLD_SIZE": "16"}, None),
        ({}, None),
    ],
)
def test_the_number_of_hosts_by_what_launchers_say(variables, expected):
    trace = rank_trace(0, variables)
    trace.header.world_size = 1
    assert several_hosts(facts_of(trace)) is expected


def test_the_number_of_hosts_by_the_ranks():
    one, other = rank_trace(0), rank_trace(1)
    assert several_hosts(facts_of(one, other)) is False  # both of two ranks, on one host
    assert several_hosts(facts_of(one)) is None
    other.header.host = "node-b"
    assert several_hosts(facts_of(one, other)) is True


def test_an_accelerator_without_a_name_is_of_a_known_maker():
    facts = facts_of(rank_trace(0, accelerators=[Accelerator("intel")], machine={"kernel": "6"}))
    assert models(facts) == [None]


CPUS = {"backend": "gloo", "device": "cpu"}


@pytest.mark.parametrize(
    ("environment", "seen"),
    [
        ({"machine": {"kernel": "6"}, **CPUS}, True),
        ({"machine": {"kernel": "6"}}, False),  # a login node
        ({"machine": {"kernel": "6"}, "accelerators": [Accelerator("nvidia")]}, True),
        ({"accelerators": [Accelerator("nvidia")]}, False),
        (CPUS, False),
    ],
)
def test_hardware_was_looked_for_where_training_runs(environment, seen):
    assert is_seen(facts_of(rank_trace(0, **environment))) is seen


def test_missing_ranks_of_a_run_may_be_on_another_host():
    alone = rank_trace(0)
    alone.header.world_size = 1
    assert several_hosts(facts_of(alone)) is None


@pytest.mark.parametrize(
    ("capability", "architecture"),
    [("5.2", ""), ("6.0", "pascal"), ("8.0", "ampere"), ("8.6", "ampere"), ("9.0", "hopper")],
)
def test_a_capability_tells_the_architecture_of_an_unknown_name(capability, architecture):
    facts = facts_of(rank_trace(0, gpus=["NVIDIA X999"], precision={"capability": capability}))
    assert architectures(facts) == {"NVIDIA X999": architecture}
