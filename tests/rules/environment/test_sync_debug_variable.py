from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.environment.sync_debug_variable import SyncDebugVariable
from tests.factories.environment import judge, rank_trace
from tests.factories.trace import group

RULE = SyncDebugVariable()

CPU = {"backend": "gloo", "device": "cpu"}


@pytest.mark.parametrize(
    ("variables", "severity"),
    [
        ({"CUDA_LAUNCH_BLOCKING": "1"}, Severity.CRITICAL),
        ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"}, Severity.CRITICAL),
        ({"TORCH_NCCL_BLOCKING_WAIT": "true"}, Severity.HIGH),
        ({"TORCH_DISTRIBUTED_DEBUG": "detail"}, Severity.HIGH),
        ({"NCCL_DEBUG": "TRACE"}, Severity.MEDIUM),
        ({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,COLL"}, Severity.MEDIUM),
        ({"TORCH_NCCL_ENABLE_TIMING": "1"}, Severity.LOW),
    ],
)
def test_switch_that_is_on_fails(variables, severity):
    (finding,) = judge(RULE, rank_trace(0), rank_trace(1, variables))
    assert (finding.status, finding.severity, finding.ranks) == (Status.FAIL, severity, (1,))
    assert list(variables)[-1] in finding.action


def test_gravest_switch_decides():
    variables = {"TORCH_NCCL_ENABLE_TIMING": "1", "HIP_LAUNCH_BLOCKING": "1"}
    (finding,) = judge(RULE, rank_trace(0, variables))
    assert finding.severity is Severity.CRITICAL
    assert len(finding.evidence[0].rows) == 2
    names = "HIP_LAUNCH_BLOCKING and TORCH_NCCL_ENABLE_TIMING"
    assert finding.problem == f"{names} are on during the run"


@pytest.mark.parametrize(
    "variables",
    [
        {"CUDA_LAUNCH_BLOCKING": "0", "TORCH_NCCL_BLOCKING_WAIT": "0"},
        {"TORCH_DISTRIBUTED_DEBUG": "INFO"},
        {"NCCL_DEBUG": "INFO"},
        {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV"},
        {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_SUBSYS": "ALL"},
        {"NCCL_CHECK_MODE": "DEFAULT"},
    ],
)
def test_healthy_settings_pass(variables):
    assert judge(RULE, rank_trace(0, variables)) == []


def checked(rank, variables=None, **details):
    trace = rank_trace(rank, variables, **details)
    trace.groups = {1: group(is_checked=True)}
    return trace


def test_wrapped_groups_fail_without_the_variable():
    (finding,) = judge(RULE, rank_trace(0), checked(1))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert finding.ranks == (1,)
    assert finding.action.startswith("Remove the call of set_debug_level")


def test_the_variable_explains_the_wrapper():
    both = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "CUDA_LAUNCH_BLOCKING": "1"}
    (finding,) = judge(RULE, checked(0, both))
    assert "set_debug_level" not in finding.summary + finding.action
    (finding,) = judge(RULE, checked(0, {"CUDA_LAUNCH_BLOCKING": "1"}))
    assert "Unset CUDA_LAUNCH_BLOCKING, remove the call of set_debug_level" in finding.action
    assert {row[0] for row in finding.evidence[0].rows} == {
        "CUDA_LAUNCH_BLOCKING",
        "torch.distributed.set_debug_level",
    }


def test_a_wrapper_is_seen_without_the_environment():
    (finding,) = judge(RULE, checked(0, recorded=False))
    assert finding.status is Status.FAIL


def test_log_level_and_subsystem_must_meet_on_a_rank():
    traces = rank_trace(0, {"NCCL_DEBUG": "INFO"}), rank_trace(1, {"NCCL_DEBUG_SUBSYS": "ALL"})
    assert judge(RULE, *traces) == []


def test_gpu_switches_are_info_on_a_cpu():
    (finding,) = judge(RULE, rank_trace(0, {"CUDA_LAUNCH_BLOCKING": "1"}, **CPU))
    assert finding.status is Status.INFO


def test_detail_slows_every_backend():
    (finding,) = judge(RULE, rank_trace(0, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, **CPU))
    assert finding.status is Status.FAIL


def test_no_environment_could_not_tell():
    (finding,) = judge(RULE, rank_trace(0, recorded=False))
    assert finding.status is Status.UNKNOWN


def test_odd_values_are_no_error():
    variables = {"CUDA_LAUNCH_BLOCKING": "", "NCCL_DEBUG": "\x00", "NCCL_DEBUG_SUBSYS": ",,"}
    assert judge(RULE, rank_trace(0, variables)) == []


def test_a_switch_that_does_not_act_is_not_said_to_slow_the_run():
    trace = rank_trace(0, {"CUDA_LAUNCH_BLOCKING": "1"}, backend="gloo", device="cpu")
    (finding,) = judge(RULE, trace)
    assert finding.status is Status.INFO
    assert finding.title == "A debugging switch is set but has no effect here"
