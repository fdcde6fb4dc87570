"""What data-quality says of how a run ended, where its log tells it."""

from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.quality.data_quality import DataQuality
from dsprof.trace.rank_log import (
    EXCEPTION,
    FAILED,
    FAILED_FIRST,
    FROM_OUTSIDE,
    HOST_MEMORY,
    LAUNCHER,
    OF_RAY,
    RAY_MEMORY,
    TRACEBACK,
    CollectiveTimeout,
    OutOfMemory,
    RankLog,
)
from dsprof.trace.schema import Trailer
from tests.factories.hangs import left
from tests.factories.logs import telling
from tests.factories.trace import judged, said, zero_rank

RULE = DataQuality()

LONG = "ValueError: " + "x" * 400


def logged(*ranks):
    """Ranks of which only logs tell, each with its facts."""
    return [
        zero_rank(number, len(ranks), is_foreign=True, log=telling(facts))
        for number, facts in enumerate(ranks)
    ]


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


def test_the_end_by_slurm_is_named_where_the_log_tells_it():
    first = zero_rank(0, trailer=None, log=telling({FROM_OUTSIDE: "time limit"}))
    finding = said(RULE, first, zero_rank(1, trailer=None))
    assert finding.problem == "The job reached its time limit"
    assert finding.summary.startswith(
        "The job reached its time limit after step 5; the records of ranks 0-1 break off. Last "
    )
    first.log = RankLog()
    assert "break off" in said(RULE, first, zero_rank(1, trailer=None)).summary


def test_of_records_that_break_off_the_log_names_the_rank_that_failed_first():
    killed = telling({FAILED_FIRST: "signal SIGKILL"})
    ranks = [zero_rank(0, 3, trailer=None), zero_rank(1, 3, trailer=None, log=killed)]
    ranks.append(zero_rank(2, 3))
    finding = said(RULE, *ranks)
    assert (finding.problem, finding.ranks) == ("Rank 1 (signal SIGKILL) failed first", (1,))
    assert finding.fix == "Check the memory of its host: `dmesg`"  # it left no traceback
    assert finding.summary.endswith("first after step 5; the records of ranks 0-1 break off.")
    ranks[2].log = telling({FAILED_FIRST: "exit code 1"})  # sys.exit(1) closes the record
    assert said(RULE, *ranks).problem == (
        "Rank 1 (signal SIGKILL), rank 2 (exit code 1) failed first on their hosts"
    )


def test_a_rank_that_only_lost_another_did_not_fail_first_on_its_host():
    lost = Trailer(reason="exit", exception="RuntimeError", lost="connection")
    ranks = [zero_rank(number, 3, trailer=lost) for number in range(2)]
    ranks.append(zero_rank(2, 3, trailer=None))
    for rank, how in ((1, "exit code 1"), (2, "signal SIGKILL")):  # each first on its host
        ranks[rank].log = telling({FAILED_FIRST: how})
    finding = next(one for one in judged(RULE, *ranks) if one.title == "The run failed")
    assert (finding.problem, finding.ranks) == ("Rank 2 (signal SIGKILL) failed first", (2,))


@pytest.mark.parametrize(
    ("how", "fix"),
    [
        ("signal SIGSEGV", "Set PYTHONFAULTHANDLER=1: a crash then writes its stack to the log"),
        ("signal SIGBUS", "Check the space in /dev/shm on its host"),
    ],
)
def test_no_traceback_is_looked_for_where_a_signal_ended_a_rank(how, fix):
    killed = zero_rank(1, trailer=None, log=telling({FAILED_FIRST: how}))
    assert said(RULE, zero_rank(0, trailer=None), killed).fix == fix


@pytest.mark.parametrize(
    ("fact", "problem"),
    [
        ({FROM_OUTSIDE: "SIGTERM"}, "SIGTERM ended torchrun and its ranks"),
        ({LAUNCHER: HOST_MEMORY}, "A process took more host memory than Slurm granted"),
    ],
)
def test_of_records_that_break_off_a_log_tells_the_cause(fact, problem):
    killed = [zero_rank(0, trailer=None, log=telling(fact)), zero_rank(1, trailer=None)]
    assert said(RULE, *killed).problem == problem
    # The other facts are consequences of this one.
    killed[0].log = telling(fact | {FAILED_FIRST: "exit code 1"})
    assert said(RULE, *killed).problem == "Rank 0 (exit code 1) failed first"


def test_of_a_run_that_failed_the_log_names_the_rank_that_did_so_first():
    first = {FAILED_FIRST: "exit code 1"}
    finding = said(RULE, *logged({FAILED: "failed"}, first))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert (finding.problem, finding.ranks) == ("Rank 1 (exit code 1) failed first", (1,))
    killed = {FAILED_FIRST: "signal SIGKILL"}
    finding = said(RULE, *logged(first, first, killed))
    assert finding.problem == (
        "Ranks 0-1 (exit code 1), rank 2 (signal SIGKILL) failed first on their hosts"
    )
    assert "out of memory" in finding.cause
    several = [{FAILED_FIRST: f"exit code {code}"} for code in (1, 2, 3)]
    assert said(RULE, *logged(*several)).problem == "Ranks 0-2 failed first on their hosts"


def test_a_process_of_unknown_rank_that_failed_is_reported_without_a_rank():
    finding = said(RULE, *logged({LAUNCHER: "exit code 2"}))
    assert (finding.status, finding.ranks) == (Status.FAIL, ())
    assert finding.problem == "A process of the run failed: exit code 2"


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("time limit", "The job reached its time limit"),
        ("cancelled", "The job was cancelled"),
        ("SIGHUP", "The terminal of torchrun closed"),
    ],
)
def test_slurm_ended_a_run_of_which_there_are_only_logs(how, problem):
    finding = said(RULE, *logged({FROM_OUTSIDE: how}))
    assert (finding.status, finding.summary) == (Status.FAIL, f"{problem}.")
    assert finding.ranks == ()


def test_an_end_that_another_rule_explains_is_not_reported_twice():
    failed, launched = {FAILED_FIRST: "exit code 1"}, {LAUNCHER: "exit code 1"}
    memory = RankLog(out_of_memory=[OutOfMemory(0, 1, 2, 0, 2, 0)])
    late = RankLog(timeouts=[CollectiveTimeout("all_reduce")])
    broken = RankLog(warnings={"NCCL error: unhandled cuda error": 1})
    for facts, more, status in (
        (failed, memory, Status.PASS),
        (failed, late, Status.PASS),
        (launched, broken, Status.PASS),
        (failed, broken, Status.FAIL),
    ):
        [trace] = logged(facts)
        trace.log.add(more)
        assert said(RULE, trace).status is status


@pytest.mark.parametrize("how", ["exit code 1", "signal SIGSEGV"])
def test_a_rank_that_closed_its_record_may_have_failed_as_a_log_says(how: str) -> None:
    ranks = [zero_rank(0, log=telling({FAILED_FIRST: how})), zero_rank(1)]
    finding = said(RULE, *ranks)
    assert (finding.status, finding.ranks, finding.confidence) == (Status.INFO, (0,), "medium")
    assert finding.summary == (
        f"Rank 0 ({how}) failed first, as the log says, and closed its record without an error."
    )
    ranks[0].trailer = Trailer("interrupted")
    assert "log" not in said(RULE, *ranks).summary


@pytest.mark.parametrize(
    ("fact", "problem"),
    [
        ({FAILED_FIRST: "signal SIGSEGV"}, "Rank 0 (signal SIGSEGV) failed first"),
        ({FROM_OUTSIDE: "time limit"}, "The job reached its time limit"),
        ({LAUNCHER: HOST_MEMORY}, "A process took more host memory than Slurm granted"),
    ],
)
def test_of_ranks_that_left_their_group_a_log_tells_what_ended_them(
    fact: dict[str, str], problem: str
) -> None:
    killed = zero_rank(0, **left(650), log=telling(fact))
    assert said(RULE, killed, zero_rank(1, **left(650))).problem == problem


def test_the_first_traceback_of_an_unknown_rank_is_quoted():
    finding = said(RULE, *logged({LAUNCHER: "exit code 1", TRACEBACK: "ValueError: x"}))
    assert finding.problem == "A process of the run failed: ValueError"
    assert (finding.cause, finding.confidence) == ("A process raised ValueError: x.", "medium")


@pytest.mark.parametrize(
    "facts",
    [
        {LAUNCHER: "signal SIGSEGV", TRACEBACK: "ValueError: x"},  # of another process
        {LAUNCHER: "exit code 1", TRACEBACK: "RuntimeError: NCCL error in: x.cpp:3"},
    ],
)
def test_a_traceback_that_did_not_come_first_is_not_quoted(facts):
    assert said(RULE, *logged(facts)).problem == f"A process of the run failed: {facts[LAUNCHER]}"


@pytest.mark.parametrize(
    ("what", "fix"),
    [
        ("OSError: [Errno 28] No space left on device: '/dev/shm/a'", "Start the container with a"),
        ("OSError: [Errno 28] No space left on device", "Check free space and quota"),
        ("RuntimeError: PytorchStreamWriter failed writing file data/3", "Check free space and"),
        ("RuntimeError: Error 802: system not yet initialized", "Start nvidia-fabricmanager"),
        ("RuntimeError: CUDA error: out of memory", "Check with nvidia-smi which processes"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling", "Use a smaller"),
        ("torch.AcceleratorError: CUDA error: invalid device ordinal", "Start at most one rank"),
        (
            "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
            "Check with",
        ),
        ("RuntimeError: CUDA error: initialization error", "Start processes by spawn"),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried", "Check the memory"),
        ("RuntimeError: received 0 items of ancdata", "Raise the limit of open files"),
        ("RuntimeError: Gloo connectFullMesh failed with [a.cc:1] no error", "Set GLOO_SOCKET_IFN"),
        ("RuntimeError: disagreement between rank0 and rank1: rank0: [1]", "Find out why these"),
    ],
)
def test_the_remedy_of_a_known_exception_is_given(what, fix):
    assert said(RULE, *logged({EXCEPTION: what})).fix.startswith(fix)
    assert said(RULE, *logged({LAUNCHER: "exit code 1", TRACEBACK: what})).fix.startswith(fix)


@pytest.mark.parametrize(("how", "fix"), [(OF_RAY, "/tmp/ray"), (RAY_MEMORY, "num_workers")])
def test_what_to_do_after_ray_lost_or_killed_a_worker(how, fix):
    assert fix in said(RULE, *logged({LAUNCHER: how})).fix


def test_an_error_of_communication_says_more_than_an_exit_code():
    traces = logged({LAUNCHER: "exit code 1"})
    traces[0].log.warn("store based barrier on rank: 0, for key: a (world_size=8, worker_count=4")
    assert said(RULE, *traces).status is Status.PASS
