"""Rules that judge logs: a healthy one passes; of memory, comms_logger and variables."""

from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.collective_timeout import CollectiveTimedOut
from dsprof.rules.communication.nccl_warning import NcclWarning
from dsprof.rules.communication.network_differs_across_ranks import NetworkDiffersAcrossRanks
from dsprof.rules.communication.transport_fallback import TransportFallback
from dsprof.rules.configuration.comms_logger_enabled import CommsLoggerEnabled
from dsprof.rules.environment.sync_debug_variable import SyncDebugVariable
from dsprof.rules.environment.unparsable_integer_variable import UnparsableIntegerVariable
from dsprof.rules.environment.variable_differs_across_ranks import VariableDiffersAcrossRanks
from dsprof.rules.memory.device_out_of_memory import DeviceOutOfMemory
from tests.factories import logs as make
from tests.factories.trace import judged, rank_trace
from tests.rules.judged_logs import IB, findings, one

OF_NCCL = (TransportFallback(), NetworkDiffersAcrossRanks(), NcclWarning())

HEALTHY = make.run(make.every(IB), make.every("Using network IB"))


@pytest.mark.parametrize("rule", [*OF_NCCL, CollectiveTimedOut(), DeviceOutOfMemory()])
def test_a_healthy_log_passes_and_no_log_does_not_apply(rule):
    assert one(rule, HEALTHY).status is Status.PASS
    (finding,) = judged(rule, rank_trace(0), rank_trace(1))
    assert finding.status is Status.NOT_APPLICABLE


def memory(**fields):
    return findings(DeviceOutOfMemory(), ["[rank0]: " + make.out_of_memory(**fields)])


def test_the_four_reasons_for_no_memory():
    (needy,) = memory()
    assert "more memory than the device has" in needy.title
    assert needy.evidence[0].rows == (
        (0, 0, 1 << 30, 80 << 30, 100 << 20, 78 << 30, 200 << 20, 924 << 20),
    )
    (fragments,) = memory(unallocated="1.00 GiB", allocated="77.00 GiB")
    assert "expandable_segments:True" in fragments.action
    (crowded,) = memory(others="Process 77 has 30.00 GiB memory in use. ", process="49.00 GiB")
    assert "Process 77 takes 30.0 GiB of 80.0 GiB" in crowded.summary
    limited = make.out_of_memory().replace("Of the all", "40.00 GiB allowed; Of the all")
    assert "limit" in one(DeviceOutOfMemory(), [limited]).title


def test_a_neighbour_that_is_not_in_the_way_is_not_blamed():
    (finding,) = memory(others="Process 77 has 200.00 MiB memory in use. ")
    assert "more memory than the device has" in finding.title


@pytest.mark.parametrize(("asked", "is_blamed"), [("6.00 GiB", True), ("6.01 GiB", False)])
def test_a_neighbour_is_blamed_where_the_request_fits_without_it(asked, is_blamed):
    theirs = "Process 77 has 5.00 GiB memory in use. "
    (finding,) = memory(asked=asked, free="1.00 GiB", others=theirs, process="74.00 GiB")
    assert ("Process 77 takes" in finding.summary) is is_blamed


def test_expandable_segments_are_not_advised_where_they_are_on():
    lines = ["+ PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", make.out_of_memory(
        unallocated="1.50 GiB", allocated="77.00 GiB")]  # fmt: skip
    assert one(DeviceOutOfMemory(), lines).action.startswith("expandable_segments is already on")


def test_the_output_of_comms_logger_proves_that_it_ran():
    info = "[INFO] [Rank 0] DeepSpeed info: version=0.19.8, git-hash=unknown"
    finding = one(CommsLoggerEnabled(), [info, make.call("all_reduce", 2)])
    assert finding.status is Status.FAIL
    assert "logs sums of all times so far" in finding.summary
    assert len(finding.evidence[0].rows) == 8
    finding = one(CommsLoggerEnabled(), [make.call("all_reduce", 2)])
    assert len(finding.evidence[0].rows) == 7


def test_variables_that_nccl_logs_are_judged_as_far_as_they_go():
    lines = make.run(
        make.every("NCCL_ALGO set by environment to Ring", 3),
        make.said("NCCL_ALGO set by environment to Tree", rank=3),
        make.every("NCCL_CHECK_POINTERS set by environment to 1."),
    )
    finding = one(VariableDiffersAcrossRanks(), lines)
    assert (finding.severity, finding.ranks) == (Severity.CRITICAL, (3,))
    assert "NCCL_CHECK_POINTERS" in one(SyncDebugVariable(), lines).summary
    # After parsing, "true" and "0" look alike.
    assert one(UnparsableIntegerVariable(), lines).status is Status.UNKNOWN
    some = make.run(make.said("NCCL_ALGO set by environment to Ring"), make.every(IB))
    for rule in (VariableDiffersAcrossRanks(), SyncDebugVariable()):
        assert one(rule, some).status in (Status.UNKNOWN, Status.NOT_APPLICABLE)


def test_what_launchers_report_is_no_log_of_nccl():
    lines = ["  rank      : 0 (local_rank: 0)", "srun: error: n1: task 0: Exited with exit code 1"]
    for rule in (TransportFallback(), NcclWarning()):
        assert one(rule, lines).status is Status.NOT_APPLICABLE
