"""Which rank others waited for, by logs of watchdogs."""

from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.collective_timeout import CollectiveTimedOut
from dsprof.rules.memory.device_out_of_memory import DeviceOutOfMemory
from tests.factories import logs as make
from tests.factories.hangs import KEPT, without
from tests.factories.trace import judged
from tests.rules.judged_logs import one


def watchdog(rank, seq=8, op="ALLREDUCE", elements=9):
    return [
        f"[rank{rank}]: [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL("
        f"SeqNum={seq}, OpType={op}, NumelIn={elements}, NumelOut={elements}, "
        "Timeout(ms)=600000) ran for 600020 milliseconds before timing out.",
    ]


def ended_by(rank, what):
    said = ("Traceback (most recent call last):", '  File "train.py", line 3', what)
    return [f"[rank{rank}]: {line}" for line in said]


def test_a_rank_that_raised_is_why_others_timed_out():
    finding = one(CollectiveTimedOut(), [*ended_by(1, "KeyError: 'x'"), *watchdog(0), *watchdog(2)])
    assert (finding.ranks, finding.confidence) == ((1,), "medium")
    assert finding.problem == "Rank 1 (KeyError) failed, and ranks 0, 2 timed out"
    assert finding.cause == "Rank 1 raised KeyError: 'x'. Others waited for rank 1."
    assert finding.action == "Find its traceback in the log."


def test_a_rank_out_of_memory_comes_before_those_that_waited_for_it():
    lines = [*ended_by(1, make.out_of_memory()), *watchdog(0)]
    timeout, memory = one(CollectiveTimedOut(), lines), one(DeviceOutOfMemory(), lines)
    assert (timeout.ranks, timeout.severity) == ((1,), Severity.HIGH)
    assert timeout.cause == "Rank 1 ran out of device memory; others waited."
    assert memory.severity.order < timeout.severity.order


@pytest.mark.parametrize("rank", [0, 1])
def test_what_the_end_of_others_raises_is_no_cause_of_a_timeout(rank):
    lost = "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1."
    lines = [*ended_by(rank, "ValueError: x" if rank == 0 else lost), *watchdog(0)]
    finding = one(CollectiveTimedOut(), make.run(lines))
    assert "raised" not in finding.cause
    assert "failed" not in finding.problem


def test_ranks_that_are_silent_are_suspects_and_no_more():
    finding = one(CollectiveTimedOut(), [*watchdog(0), *watchdog(2), *watchdog(3)])
    assert (finding.ranks, finding.confidence) == ((1,), "low")
    assert "after 600 s" in finding.summary
    assert finding.evidence[0].rows[0] == (0, "all_reduce", 9, 8, None, None)
    unnumbered = one(CollectiveTimedOut(), [*watchdog(0, elements=0), status(2, 3, 5)])
    assert unnumbered.evidence[0].rows == (
        (0, "all_reduce", 0, 8, None, None),
        (2, None, None, 5, 4, 6),
    )


def asked(rank, enqueued, completed, group=0):
    return (
        f"[rank{rank}]:[E901 05:20:03.1 ProcessGroupNCCL.cpp:1746] [PG ID {group} PG GUID {group}"
        f"(default_pg) Rank {rank}] Received a dump signal due to a collective timeout from  rank "
        f"0 and we will try our best to dump the debug info. Last enqueued NCCL work: {enqueued}, "
        f"last completed NCCL work: {completed}.This is most likely caused by incorrect usages"
    )


def test_a_rank_that_was_asked_for_a_dump_tells_whether_it_came():
    told = [status(0, 0, 8), asked(1, 8, 7), asked(2, 7, 7), status(3, 0, 8)]
    finding = one(CollectiveTimedOut(), told)
    assert (finding.ranks, finding.confidence) == ((2,), "medium")
    assert finding.summary == "Ranks 0, 3 timed out in collective number 8."
    assert finding.cause == ("Rank 2 had not issued collective number 8; the others wait in it.")
    every = one(CollectiveTimedOut(), [*told[:2], asked(2, 9, 7), told[3]])
    assert (every.ranks, "A rank is stuck on its device" in every.cause) == ((), True)
    other = one(CollectiveTimedOut(), [*told[:2], asked(2, 7, 7, group=5), told[3]])
    assert "No report from rank 2" in other.cause


def test_ranks_that_never_completed_a_collective_may_have_no_path() -> None:
    first = [*watchdog(0, 1), status(0, 0, 1), *watchdog(1, 1), status(1, 0, 1)]
    finding = one(CollectiveTimedOut(), first)
    assert "may be unable to exchange data" in finding.cause
    assert "Set NCCL_DEBUG=INFO" in finding.action
    for others in (
        [*watchdog(0, 2), status(0, 0, 2), *watchdog(1, 2), status(1, 0, 2)],
        [*first, *watchdog(1, 1, "BROADCAST"), asked(2, 0, 0)],  # rank 2 did not come
    ):
        finding = one(CollectiveTimedOut(), others)
        assert "exchange" not in finding.cause
        assert "NCCL_DEBUG" not in finding.action


def test_a_timeout_of_a_rank_whose_log_is_missing():
    finding = one(CollectiveTimedOut(), [asked(1, 8, 7)])
    assert (finding.status, finding.ranks) == (Status.FAIL, ())
    assert finding.summary == "A collective timed out on rank 0, whose log was not given."


@pytest.mark.parametrize("silent", [1, 3])
def test_any_rank_of_the_job_may_be_the_silent_one(silent):
    told = [line for rank in range(4) if rank != silent for line in watchdog(rank)]
    finding = one(CollectiveTimedOut(), make.run(told))
    assert finding.ranks == (silent,)
    assert finding.cause.endswith(f"rank {silent}: stuck, ended or not in the group.")
    in_default = [status(rank, 0, 8) for rank in range(4) if rank != silent]
    assert one(CollectiveTimedOut(), make.run(told, in_default)).cause.endswith("stuck or ended.")


def test_gloo_names_the_ranks_that_did_not_come_to_a_monitored_barrier():
    said = "[rank0]: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 8000 ms"
    finding = one(CollectiveTimedOut(), [said])
    assert (finding.ranks, finding.confidence) == ((1, 3), "medium")
    assert finding.summary == "Rank 0 timed out in a barrier after 8.00 s."
    assert finding.cause == "Ranks 1, 3 did not join, as gloo's message says."
    assert "NCCL" not in finding.action


def test_most_of_a_job_is_no_suspect():
    finding = one(CollectiveTimedOut(), make.run(watchdog(0)))
    assert finding.ranks == ()
    assert finding.cause.startswith("No report from ranks 1-3")


def test_where_all_have_reported_no_rank_is_missing():
    told = [line for rank in range(4) for line in watchdog(rank)]
    assert "missing" not in one(CollectiveTimedOut(), make.run(told)).cause
    assert one(CollectiveTimedOut(), told).cause.endswith("or a higher rank is missing.")


def test_who_is_in_a_smaller_group_is_not_known():
    told = [status(rank, 3, 8) for rank in range(3)]
    assert one(CollectiveTimedOut(), make.run(told)).cause.endswith(
        "No report from rank 3: stuck, ended or not in the group."
    )


def test_traces_beside_the_logs_name_who_did_not_come():
    lines = [*watchdog(0), *watchdog(1), *watchdog(3)]
    traces = without(2, **KEPT)
    for of_log in make.read(lines):
        traces[of_log.rank].log = of_log.log
    (finding,) = judged(CollectiveTimedOut(), *traces)
    assert (finding.ranks, finding.confidence) == ((2,), "high")
    assert finding.cause.startswith("Rank 2 never entered all_reduce 4 of group world")
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT" not in finding.action


def test_several_silent_ranks_have_logs_and_stacks_of_their_own():
    several = one(CollectiveTimedOut(), [*watchdog(0), *watchdog(3)])
    assert several.cause.endswith("ranks 1-2: stuck, ended, not in the group or not in these logs.")
    assert several.action.startswith("Read the ends of the logs and the stacks of ranks 1-2")
    single = one(CollectiveTimedOut(), [*watchdog(0), *watchdog(2)])
    assert single.cause.endswith("rank 1: stuck, ended, not in the group or not in these logs.")
    assert "the end of the log and the stack of rank 1 (" in single.action
    assert single.evidence[0].caption == "As written by the watchdog of ranks 0, 2"


def test_ranks_that_wait_in_an_earlier_collective():
    finding = one(CollectiveTimedOut(), [*watchdog(0), *watchdog(1, seq=5)])
    assert finding.ranks == (1,)
    assert "the ranks issue different collectives" in finding.cause


def test_ranks_in_different_broadcasts_prove_no_mismatch():
    numbers = (56, 5, 48, 5)
    told = [line for rank in range(4) for line in watchdog(rank, numbers[rank], "BROADCAST")]
    finding = one(CollectiveTimedOut(), told)
    assert finding.summary == "Ranks 0-3 timed out in broadcasts number 5 to 56 after 600 s."
    assert (finding.ranks, finding.confidence) == ((1, 3), "low")
    assert "different collectives" not in finding.cause
    assert finding.cause.startswith(
        "Ranks 1, 3 wait in collective number 5, the others in later ones. Some ranks leave a "
        "broadcast before others complete it"
    )


def test_a_timeout_in_a_line_of_no_rank_accuses_none():
    (line,) = watchdog(0)
    finding = one(CollectiveTimedOut(), make.run(line.removeprefix("[rank0]: [Rank 0] ")))
    assert finding.summary == "A rank timed out in all_reduce number 8 after 600 s."
    assert (finding.ranks, finding.confidence) == ((), "")
    assert finding.cause == "The logs do not say which rank did not join."
    assert finding.evidence[0].rows[0][0] is None


def test_the_status_that_earlier_releases_print():
    lines = [
        "[rank1]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 1] Timeout at NCCL work: 5, last "
        "enqueued NCCL work: 6, last completed NCCL work: 4.",
        *watchdog(1, 5),
    ]
    finding = one(CollectiveTimedOut(), lines)
    assert finding.evidence[0].rows == ((1, "all_reduce", 9, 5, 4, 6),)


def status(rank, group, at):
    return (
        f"[rank{rank}]:[E1] [PG ID 1 PG GUID {group}(undefined) Rank 0] failure detected by "
        f"watchdog at work sequence id: {at} PG status: last enqueued work: {at + 1}, last "
        f"completed work: {at - 1}"
    )


def test_numbers_of_several_groups_are_not_compared():
    finding = one(CollectiveTimedOut(), [status(0, 3, 5), status(1, 3, 5), status(2, 4, 8)])
    assert finding.ranks == ()
    assert finding.evidence[0].rows[0][3:] == (5, 4, 6)
    finding = one(CollectiveTimedOut(), [status(0, 3, 5), status(1, 3, 8)])
    assert finding.ranks == (0,)


def test_ranks_that_wait_in_different_collectives():
    finding = one(CollectiveTimedOut(), [*watchdog(0), *watchdog(1, op="BROADCAST")])
    assert "different collectives" in finding.cause
    assert finding.ranks == ()
