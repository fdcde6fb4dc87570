from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.environment.misplaced_process import MisplacedProcess
from tests.factories import machines
from tests.factories.environment import judge, rank_trace

RULE = MisplacedProcess()

LIMITS = {"cpus": 64}


def rank(number, cpus, nodes="0", host="node-a", variables=None, **details):
    given = {"machine": {"cpus": cpus, "cpu_nodes": nodes}, "limits": LIMITS, **details}
    trace = rank_trace(number, variables, **given)
    trace.header.host, trace.header.local_rank = host, number
    return trace


def test_all_ranks_on_one_core_fail():
    (finding,) = judge(RULE, rank(0, "1"), rank(1, "1"), rank(2, "1"))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert finding.ranks == (0, 1, 2)
    assert "CPU 1 of node-a" in finding.summary


def test_one_core_each_is_fine():
    assert judge(RULE, rank(0, "1"), rank(1, "2"), rank(2, "1", host="node-b")) == []


def test_fewer_cores_than_ranks_are_information():
    (finding,) = judge(RULE, *(rank(number, "0-1") for number in range(4)))
    assert finding.status is Status.INFO


def test_a_small_machine_is_not_blamed():
    traces = [rank(number, "0-1", limits={"cpus": 2}) for number in range(4)]
    assert judge(RULE, *traces) == []


def gpus(number, nodes, **variables):
    """A rank of a DGX whose devices 0-3 are on node 0, and 4-7 on node 1."""
    accelerators = machines.nodes(8, "NVIDIA H100 80GB HBM3")
    cpus = f"{number * 8}-{number * 8 + 7}"
    return rank(number, cpus, nodes, variables=variables, accelerators=accelerators)


def test_a_rank_bound_to_the_other_socket_fails():
    (finding,) = judge(RULE, gpus(0, "0"), gpus(5, "0"))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert finding.ranks == (5,)
    assert "on NUMA node 0, the device on node 1" in finding.summary


@pytest.mark.parametrize(
    ("variables", "fails"),
    [
        ({}, True),
        ({"CUDA_VISIBLE_DEVICES": "5"}, True),
        ({"CUDA_VISIBLE_DEVICES": "2"}, False),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6,7,0,1"}, False),  # the sixth is device 1
        ({"CUDA_VISIBLE_DEVICES": "GPU-5ebe9f43"}, False),  # could be any
        ({"CUDA_VISIBLE_DEVICES": ""}, False),
    ],
)
def test_the_device_of_a_rank_is_the_visible_one_of_its_number(variables, fails):
    assert bool(judge(RULE, gpus(5, "0", **variables))) is fails


def test_ranks_of_both_sockets_are_listed_by_the_node_of_their_device():
    far = judge(RULE, gpus(5, "0"), gpus(0, "1"))
    assert far == judge(RULE, gpus(0, "1"), gpus(5, "0"))
    assert far[0].ranks == (0, 5)


def test_ranks_beside_their_devices_or_unbound_pass():
    assert judge(RULE, gpus(0, "0"), gpus(5, "1"), gpus(6, "0-1")) == []


def test_unknown_cpus_could_not_tell():
    (finding,) = judge(RULE, rank_trace(0))
    assert finding.status is Status.UNKNOWN


def test_a_device_without_a_node_is_left_out():
    assert judge(RULE, rank(0, "0-3", accelerators=machines.nodes(0, ""))) == []


def test_odd_lists_of_cpus_are_no_error():
    for text in ("x", "1-", ",", "0-3-5"):
        assert judge(RULE, rank(0, text, text), rank(1, text, text)) == []


def test_a_device_number_without_end_names_no_device():
    variables = {"CUDA_VISIBLE_DEVICES": "9" * 5000, "WORLD_SIZE": "9" * 5000}
    findings = judge(RULE, rank_trace(0, variables))
    assert all(one.status in (Status.UNKNOWN, Status.NOT_APPLICABLE) for one in findings)
