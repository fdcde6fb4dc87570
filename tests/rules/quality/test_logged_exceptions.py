"""What data-quality says of exceptions that are in the log of a run."""

from __future__ import annotations

import pytest

from dsprof.findings.finding import Status
from dsprof.rules.quality.data_quality import RULE
from dsprof.trace.rank_log import (
    EXCEPTION,
    FAILED_FIRST,
    HOST_MEMORY,
    LAUNCHER,
    OutOfMemory,
    RankLog,
)
from tests.factories.trace import said, zero_rank

LONG = "ValueError: " + "x" * 400


def logged(*ranks):
    """Ranks of which only logs tell, each with its facts."""
    found = [zero_rank(number, len(ranks), is_foreign=True) for number in range(len(ranks))]
    for trace, facts in zip(found, ranks, strict=True):
        trace.log = RankLog()
        for kind, value in facts.items():
            trace.log.say(kind, value)
    return found


def test_the_rank_that_failed_first_is_named_with_its_exception():
    failed = {FAILED_FIRST: "exit code 1", EXCEPTION: "a.b.KeyError: 'labels'."}
    finding = said(RULE, *logged({EXCEPTION: "OSError: later"}, failed))
    assert finding.summary == "Rank 1 (KeyError) failed first."
    assert finding.cause == "Rank 1 raised a.b.KeyError: 'labels'."
    assert finding.ranks == (1,)


def test_a_rank_without_an_exception_keeps_its_exit_code():
    killed, other = {FAILED_FIRST: "signal SIGBUS"}, {FAILED_FIRST: "exit code 1"}
    finding = said(RULE, *logged(killed, other | {EXCEPTION: LONG}))
    assert finding.problem == (
        "Rank 0 (signal SIGBUS), rank 1 (ValueError) failed first on their hosts"
    )
    assert finding.cause.startswith("Rank 1 raised ValueError: xxx")
    assert len(finding.cause) < 250


def test_an_exception_says_more_than_an_exit_code_of_an_unknown_rank():
    ranks = [{EXCEPTION: "OSError: no file"}, {EXCEPTION: "OSError: no file"}, {}]
    for more in ({LAUNCHER: "exit code 1"}, {}):
        finding = said(RULE, *logged(*ranks, more))
        assert (finding.status, finding.problem) == (Status.FAIL, "Ranks 0-1 (OSError) failed")
        assert finding.ranks == (0, 1)


@pytest.mark.parametrize(
    ("what", "fix"),
    [
        ("CUDA error: an illegal memory access was encountered", "Look for Xid errors of the"),
        (
            "torch.AcceleratorError: CUDA error: uncorrectable ECC error",
            "Look for Xid errors of the",
        ),
        ("RuntimeError: HIP error: unspecified launch failure", "Look for errors of amdgpu in"),
        ("RuntimeError: CUDA error: device-side assert triggered", "Find its traceback in"),
        ("RuntimeError: CUDA error: no kernel image is available", "Find its traceback in"),
    ],
)
def test_after_an_error_of_the_device_the_kernel_log_is_looked_at(what, fix):
    ended = {FAILED_FIRST: "exit code 1", EXCEPTION: what}
    assert said(RULE, *logged(ended)).fix.startswith(fix)
    aborted = {FAILED_FIRST: "signal SIGABRT", EXCEPTION: what}
    found = said(RULE, *logged(aborted)).fix
    assert found.startswith(fix if "Xid" in fix or "amdgpu" in fix else "Set PYTHONFAULTHANDLER")


def test_of_many_exceptions_only_the_ranks_are_named():
    finding = said(RULE, *logged(*({EXCEPTION: f"{kind}: x"} for kind in ("A", "B", "C"))))
    assert finding.summary == "Ranks 0-2 failed."


@pytest.mark.parametrize(
    "what",
    [
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:3",
        "RuntimeError: Connection closed by peer [10.0.0.1]:3",
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated.",
        "KeyboardInterrupt",
    ],
)
def test_what_the_end_of_another_process_caused_is_not_the_cause(what):
    launched = {LAUNCHER: "exit code 1"}
    finding = said(RULE, *logged(launched, {EXCEPTION: what}))
    assert finding.problem == "A process of the run failed: exit code 1"
    first = {FAILED_FIRST: "exit code 1", EXCEPTION: what}
    assert said(RULE, *logged(first, {})).problem == "Rank 0 (exit code 1) failed first"


def test_an_exception_that_another_rule_explains_is_not_reported():
    traces = logged({EXCEPTION: "torch.OutOfMemoryError: CUDA out of memory"})
    traces[0].log.add(RankLog(out_of_memory=[OutOfMemory(0, 1, 2, 0, 2, 0)]))
    assert said(RULE, *traces).status is Status.PASS


def test_the_first_of_several_tracebacks_is_looked_for() -> None:
    raised = {EXCEPTION: "ValueError: x"}
    assert said(RULE, *logged({}, raised)).fix == "Find the traceback of rank 1 in the log"
    assert said(RULE, *logged(raised, raised)).fix == "Find the first traceback in the log"


def test_a_process_that_slurm_killed_for_its_memory_left_no_traceback():
    finding = said(RULE, *logged({LAUNCHER: HOST_MEMORY}, {EXCEPTION: "EOFError"}))
    assert finding.problem == "A process took more host memory than Slurm granted"
    assert "--mem" in finding.fix


@pytest.mark.parametrize(
    ("how", "fix"),
    [
        ("signal SIGKILL", "Check the memory of its host: `dmesg`"),
        ("signal SIGSEGV", "Set PYTHONFAULTHANDLER=1"),
        ("exit code 1", "Find the first traceback"),
    ],
)
def test_a_process_of_no_known_rank_that_a_signal_ended_left_no_traceback(how, fix):
    assert said(RULE, *logged({LAUNCHER: how})).fix.startswith(fix)


def test_damaged_memory_is_no_mistake_of_the_program():
    ended = {FAILED_FIRST: "exit code 1", EXCEPTION: "CUDA error: uncorrectable ECC error"}
    action = said(RULE, *logged(ended)).action
    assert "reset it" in action
    assert "CUDA_LAUNCH_BLOCKING" not in action


@pytest.mark.parametrize(
    ("what", "fix"),
    [
        ("DataLoader worker (pid 7) is killed by signal: Killed.", "Check the memory of its host"),
        ("DataLoader worker (pid 7) is killed by signal: Bus error.", "Start the container with"),
        ("Expected to have finished reduction in the prior iteration", "Pass find_unused_param"),
        ("shape '[2]' is invalid for input of size 3", "Find the traceback of rank 1"),
    ],
)
def test_after_a_known_exception_its_remedy_is_named(what, fix):
    finding = said(RULE, *logged({}, {EXCEPTION: f"RuntimeError: {what}"}))
    assert (finding.problem, finding.ranks) == ("Rank 1 (RuntimeError) failed", (1,))
    assert finding.fix.startswith(fix)


def fingerprint(number, call):
    return f"is running collective: CollectiveFingerPrint(SequenceNumber={number}{call})"


def test_of_collectives_that_differ_the_difference_is_quoted():
    options = "TensorOptions(dtype=float (default), device=cuda, memory_format=(nullopt))"
    whole = f", OpType=_ALLGATHER_BASE, TensorShape=[4, 16], TensorDeviceTypes={options}"
    both = f"Rank 1 {fingerprint(3, whole)}, but Rank 2 {fingerprint(0, 'OpType=REDUCE')}."
    what = f"RuntimeError: Detected mismatch between collectives on ranks. {both}"
    finding = said(RULE, *logged({}, {EXCEPTION: f"{what}Collectives differ in x"}))
    assert finding.cause == (
        "Rank 1 raised RuntimeError: Rank 1 calls all_gather [4, 16] (number 3), but Rank 2 calls "
        "reduce (number 0)."
    )
    assert finding.fix == "Find out why these ranks call different collectives"


@pytest.mark.parametrize(
    "what",
    [
        "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.",
        "RuntimeError: [unbound_buffer.cc:8] Timed out waiting 1800000ms for recv operation",
    ],
)
def test_a_rank_that_only_lost_another_one_did_not_end_well(what):
    finding = said(RULE, *logged({}, {EXCEPTION: what}))
    assert finding.status is Status.FAIL
    assert "lost another rank, or waited for it in vain" in finding.problem
    assert finding.ranks == ()


@pytest.mark.parametrize("quoted", ["NCCL error: remote process exited", "2/4 clients joined"])
def test_what_rule_nccl_warning_explains_is_not_reported_twice(quoted):
    traces = logged({EXCEPTION: f"torch.distributed.DistStoreError: {quoted}"})
    traces[0].log.warn(quoted)
    assert said(RULE, *traces).status is Status.PASS


def test_a_rank_with_two_last_exceptions_is_of_two_runs():
    traces = logged({EXCEPTION: "OSError: disk"}, {EXCEPTION: "KeyError: 'a'"})
    assert said(RULE, *traces).confidence == "high"
    traces[1].log.say(EXCEPTION, "OSError: disk")
    finding = said(RULE, *traces)
    assert "The logs give rank 1 several last exceptions: " in finding.cause
    assert finding.action.endswith(" Give the logs of one start.")
    assert finding.confidence == "low"
