from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.environment.bootstrap_interface import BootstrapInterface
from dsprof.rules.environment.variable_values import select
from dsprof.trace.selection import Selection
from tests.factories.environment import judge, rank_trace

RULE = BootstrapInterface()

HOST = ["docker0 down", "eth0 up 25000 Mbit/s", "eth01 up"]
SEVERAL = {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}
ALONE = {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}


def found(variables, backend="nccl", network=HOST):
    return judge(RULE, rank_trace(0, variables, backend=backend, network_devices=network))


@pytest.mark.parametrize(
    ("value", "selected"),
    [
        ("eth0", "eth0 eth01"),
        ("=eth0", "eth0"),
        ("eth01,docker", "docker0 eth01"),
        ("^docker,lo", "eth0 eth01"),
        ("^=eth0", "lo docker0 eth01"),
        ("eth0:1", "eth0 eth01"),
        ("bond0", ""),
        ("", ""),
    ],
)
def test_values_select_as_nccl_does(value, selected):
    assert select(value, ["lo", "docker0", "eth0", "eth01"]) == tuple(selected.split())


def test_gloo_knows_no_prefixes():
    assert select("eth", ["eth0"], has_prefixes=False) == ()
    assert select("eth0", ["eth0", "eth01"], has_prefixes=False) == ("eth0",)
    assert select("=eth0", ["eth0"], has_prefixes=False) == ()
    assert select("^eth0", ["eth0", "eth1"], has_prefixes=False) == ()


@pytest.mark.parametrize(
    ("variable", "backend"),
    [
        ("NCCL_SOCKET_IFNAME", "nccl"),
        ("GLOO_SOCKET_IFNAME", "gloo"),
        ("HCCL_SOCKET_IFNAME", "hccl"),
        ("CCL_KVS_IFACE", "xccl"),
    ],
)
def test_an_interface_that_is_not_there_fails(variable, backend):
    (finding,) = found({variable: "ib9"}, backend)
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.CRITICAL)
    assert f"{variable}=ib9" in finding.summary
    assert "eth0" in finding.cause
    assert found({variable: "ib9"}, "mpi") == []


@pytest.mark.parametrize("value", ["lo", "docker0", "^docker0", "^eth"])
def test_a_local_interface_between_hosts_fails(value):
    (finding,) = found(SEVERAL | {"NCCL_SOCKET_IFNAME": value})
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.CRITICAL)
    assert finding.ranks == (0,)


@pytest.mark.parametrize("value", ["=eth0", "^docker,lo", "eth01", "=eth0,=eth01"])
def test_interfaces_between_hosts_pass(value):
    assert found(SEVERAL | {"NCCL_SOCKET_IFNAME": value}) == []


def test_a_local_interface_serves_one_host():
    assert found(ALONE | {"GLOO_SOCKET_IFNAME": "lo"}, "gloo") == []


def test_chosen_ranks_of_one_host_do_not_tell_that_there_are_several():
    local = rank_trace(0, SEVERAL | {"NCCL_SOCKET_IFNAME": "lo"}, network_devices=HOST)
    some = Selection(ranks=(range(4),))
    (finding,) = judge(RULE, local, selection=some)
    assert finding.status is Status.UNKNOWN
    local.header.host = "node-0"
    other = rank_trace(1, SEVERAL, network_devices=HOST)
    other.header.host = "node-1"
    (finding,) = judge(RULE, local, other, selection=some)
    assert finding.status is Status.FAIL


def test_whether_it_serves_is_unknown_without_the_number_of_hosts():
    (finding,) = found({"NCCL_SOCKET_IFNAME": "lo"})
    assert finding.status is Status.UNKNOWN
    assert "NCCL_SOCKET_IFNAME=lo" in finding.summary


def test_a_sentence_names_a_few_interfaces_of_a_host():
    network = [f"veth{n:02d} up" for n in range(20)]
    (finding,) = found({"NCCL_SOCKET_IFNAME": "ib9"}, network=network)
    assert finding.cause.endswith(" veth06 and 13 more.")


def test_a_sentence_names_a_few_of_thousands_of_ranks():
    ranks = range(0, 4096, 2)
    missing = {"NCCL_SOCKET_IFNAME": "ib9"}
    (finding,) = judge(RULE, *(rank_trace(r, missing, network_devices=HOST) for r in ranks))
    assert "on ranks 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 2,036 more names" in (
        finding.summary
    )
    (row,) = finding.evidence[0].rows
    assert any(str(cell).endswith(", 126 and 1,984 more") for cell in row)
    assert finding.ranks == tuple(ranks)


def test_a_prefix_that_takes_more_than_it_names_is_information():
    (finding,) = found(SEVERAL | {"NCCL_SOCKET_IFNAME": "eth0"})
    assert finding.status is Status.INFO
    assert "eth0, eth01" in finding.summary


@pytest.mark.parametrize("network", [[], [f"eth{n} up" for n in range(64)]])
def test_an_incomplete_list_of_interfaces_could_not_tell(network):
    (finding,) = found({"NCCL_SOCKET_IFNAME": "ib9"}, network=network)
    assert finding.status is Status.UNKNOWN


def test_each_host_is_asked_for_its_own_interfaces():
    one = rank_trace(0, {"NCCL_SOCKET_IFNAME": "ib0"}, network_devices=["ib0 up"])
    other = rank_trace(1, {"NCCL_SOCKET_IFNAME": "ib0"}, network_devices=["eth0 up"])
    (finding,) = judge(RULE, one, other)
    assert finding.ranks == (1,)


def test_odd_values_are_no_error():
    for value in (" ", ",", "^", "=", "^=", "\x00", "eth0,,"):
        found(SEVERAL | {"NCCL_SOCKET_IFNAME": value}, network=["", " ", "eth0"])


def of_release(release, value, network):
    variables = SEVERAL | {"NCCL_SOCKET_IFNAME": value}
    trace = rank_trace(0, variables, network_devices=network, versions={"nccl": release})
    return [(finding.status, finding.summary) for finding in judge(RULE, trace)]


def test_later_releases_of_nccl_take_what_is_up_alone():
    host = ["docker0 down", "eth0 up", "ib0 down"]
    ((status, said),) = of_release("2.28.3", "ib0", host)
    assert (status, "no interface of the host that can be used" in said) == (Status.FAIL, True)
    assert of_release("2.28.3", "^lo", host) == []
    assert of_release("2.27.7", "ib0", host) == []
    ((status, said),) = of_release("2.27.7", "^lo", host)
    assert (status, "selects docker0" in said) == (Status.FAIL, True)


def test_gloo_needs_each_interface_that_is_named():
    (finding,) = found(SEVERAL | {"GLOO_SOCKET_IFNAME": "eth0,eth9"}, "gloo")
    assert finding.status is Status.FAIL
    assert "names eth9, which the host does not have" in finding.summary
    assert found(SEVERAL | {"GLOO_SOCKET_IFNAME": "eth0,eth01"}, "gloo") == []
