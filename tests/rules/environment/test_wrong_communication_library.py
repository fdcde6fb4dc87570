from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.environment.wrong_communication_library import WrongCommunicationLibrary
from tests.factories import machines
from tests.factories.environment import judge, rank_trace

RULE = WrongCommunicationLibrary()

SEVERAL = {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}
NCCL = "/venv/nvidia/nccl/lib/libnccl.so.2"
RCCL = "/opt/rocm/lib/librccl.so.1.0"


def found(*libraries, machine=None, variables=SEVERAL, backend="nccl"):
    given = {**(machine or machines.h100_infiniband()), "libraries": list(libraries)}
    return judge(RULE, rank_trace(0, variables, backend=backend, **given))


def test_two_copies_in_one_process_fail():
    (finding,) = found(NCCL, "/usr/lib/libnccl.so.2.18.3")
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert "/usr/lib/libnccl.so.2.18.3" in str(finding.evidence)


def test_copies_in_different_processes_are_the_business_of_versions():
    one = rank_trace(0, libraries=[NCCL], **machines.h100_infiniband())
    other = rank_trace(1, libraries=["/other/libnccl.so.2"], **machines.h100_infiniband())
    assert judge(RULE, one, other) == []


@pytest.mark.parametrize(
    ("machine", "library"), [(machines.aws_efa(), NCCL), (machines.slingshot(), RCCL)]
)
def test_no_plugin_where_the_network_needs_one_fails(machine, library):
    (finding,) = found(library, "/usr/lib/libfabric.so.1", machine=machine)
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.CRITICAL)


@pytest.mark.parametrize(
    "plugin",
    [
        "/opt/amazon/ofi-nccl/lib/libnccl-net-ofi.so",
        "/opt/aws-ofi-nccl/lib/libnccl-net.so.0.0.0",
        "/sw/lib/librccl-net.so",
    ],
)
def test_a_plugin_passes(plugin):
    assert found(NCCL, plugin, machine=machines.aws_efa()) == []


def test_infiniband_needs_no_plugin():
    assert found(NCCL) == []


def test_one_host_needs_no_plugin():
    alone = {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}
    assert found(NCCL, machine=machines.aws_efa(), variables=alone) == []


def test_before_the_first_step_it_could_not_tell():
    (finding,) = found()
    assert finding.status is Status.UNKNOWN


def test_gloo_has_no_such_library():
    (finding,) = found(NCCL, backend="gloo")
    assert finding.status is Status.NOT_APPLICABLE


def test_odd_paths_are_no_error():
    (finding,) = found("", "libnccl.so", "/libnccl", "\x00")
    assert finding.status is Status.UNKNOWN
