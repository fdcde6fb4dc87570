from __future__ import annotations

import pytest

from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Severity, Status
from dsprof.rules.environment.misspelt_variable import MisspeltVariable, Thresholds
from dsprof.rules.knowledge.variables import known_names
from tests.factories.environment import facts_of, judge, rank_trace

RULE = MisspeltVariable()


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("NCCL_BUFFERSIZE", "NCCL_BUFFSIZE"),
        ("NCCL_MIN_CHANNELS", "NCCL_MIN_NCHANNELS"),
        ("NCCL_SOCKET_IFNAMES", "NCCL_SOCKET_IFNAME"),
        ("TORCH_NCCL_BLOCKNG_WAIT", "TORCH_NCCL_BLOCKING_WAIT"),
        ("CUDA_DEVICE_MAX_CONNECTION", "CUDA_DEVICE_MAX_CONNECTIONS"),
        ("PYTORCH_CUDA_ALLOC_CONFIG", "PYTORCH_CUDA_ALLOC_CONF"),
        ("FI_CXI_RDZV_TRESHOLD", "FI_CXI_RDZV_THRESHOLD"),
    ],
)
def test_near_match_fails_and_names_what_was_meant(wrong, right):
    (finding,) = judge(RULE, rank_trace(0), rank_trace(1, {wrong: "1"}))
    assert (finding.status, finding.severity, finding.ranks) == (Status.FAIL, Severity.HIGH, (1,))
    assert f"set {right} instead" in finding.action
    assert finding.evidence[0].rows == ((wrong, "1", "1", right),)


def test_retired_name_says_what_to_do_and_not_a_near_match():
    (finding,) = judge(RULE, rank_trace(0, {"NCCL_TIMEOUT": "1800"}))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.LOW)
    assert "init_process_group" in finding.action
    assert "NCCL_IB_TIMEOUT" not in finding.action


def test_one_name_with_two_values_is_advised_once():
    traces = (rank_trace(r, {"NCCL_BUFFERSIZE": str(r)}) for r in range(2))
    (finding,) = judge(RULE, *traces)
    assert finding.action == "NCCL_BUFFERSIZE: set NCCL_BUFFSIZE instead."
    assert len(finding.evidence[0].rows) == 2


def test_of_many_names_the_first_are_advised_and_all_are_evidence():
    (finding,) = judge(RULE, rank_trace(0, {f"NCCL_BUFFSIZE{n}": "1" for n in range(5000)}))
    assert finding.action.endswith("; and 4,988 more.")
    assert len(finding.action) < 1_000
    assert len(finding.evidence[0].rows) == 5000


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_VERSION",  # set by images
        "NCCL_FASTRAK_NUM_FLOWS",  # plugins
        "NCCL_DYNAMIC_CHUNK_SIZE",
        "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX",
        "CUDA_HOME",
        "CUDA_MODULE_DATA_LOADING",
        "NCCL_ASYNC_ERROR_HANDLING",  # set by DeepSpeed itself
        "NCCL_MY_OWN_THING",  # like nothing known
        "UCX_TLSS",  # UCX warns by itself
        "SLURM_JOB_IDS",
    ],
)
def test_names_that_are_no_mistake_pass(name):
    assert judge(RULE, rank_trace(0, {name: "1"})) == []


def test_no_known_name_is_a_suspect():
    variables = {name.replace("*", "X"): "1" for name in known_names()}
    assert judge(RULE, rank_trace(0, variables)) == []


def test_threshold_is_in_force():
    run = RunSummary([facts_of(rank_trace(0, {"NCCL_BUFFERSIZE": "1"}))])
    assert list(RULE.check(run, Thresholds(similarity=0.99))) == []


@pytest.mark.parametrize("name", ["NCCL_BUFFERSIZE", "NCCL_TIMEOUT"])
def test_name_of_an_unused_library_is_no_fault(name):
    trace = rank_trace(0, {name: "1"}, backend="gloo", device="cpu")
    (finding,) = judge(RULE, trace)
    assert (finding.status, finding.severity) == (Status.INFO, Severity.NONE)


def test_another_misspelt_name_beside_it_fails():
    variables = {"NCCL_BUFFERSIZE": "1", "PYTORCH_CUDA_ALLOC_CONFIG": "1"}
    (finding,) = judge(RULE, rank_trace(0, variables, backend="gloo", device="cpu"))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)


def test_odd_names_are_no_error():
    assert judge(RULE, rank_trace(0, {"": "", "NCCL_": "", "NCCL_[*": "x"})) == []
