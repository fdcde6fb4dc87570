from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from dsprof.analysis.aggregates.run import Run
from dsprof.diagnosis.build import diagnose, diagnosis_of
from dsprof.diagnosis.quality_lines import quality_lines
from dsprof.environment import EnvSnapshot
from dsprof.findings.finding import Severity, Status
from dsprof.rules.quality.data_quality import RULE
from dsprof.rules.runner import judge
from dsprof.trace.lines import Line
from dsprof.trace.rank_log import (
    FAILED,
    FAILED_FIRST,
    FROM_OUTSIDE,
    HOST_MEMORY,
    LAUNCHER,
    CollectiveTimeout,
    OutOfMemory,
    RankLog,
)
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.run import find_run
from dsprof.trace.schema import Trailer
from dsprof.trace.selection import OPEN_END, Selection
from tests.factories.hangs import left, without
from tests.factories.trace import (
    MS,
    captured,
    header,
    heartbeat,
    issued,
    judged,
    judged_summary,
    said,
    summary,
    sync,
    zero_rank,
)
from tests.factories.trace_files import encode, run_events, write_run


def with_trailer(**fields):
    return zero_rank(0, trailer=Trailer(reason="exit", **fields)), zero_rank(1)


def test_a_whole_record_passes():
    assert said(RULE, zero_rank(0), zero_rank(1)).status is Status.PASS


def foreign(rank, world_size=2, **fields):
    return zero_rank(rank, world_size, is_foreign=True, **fields)


def test_files_of_other_tools_pass_without_a_promise():
    finding = said(RULE, foreign(0), foreign(1))
    assert finding.status is Status.PASS
    assert finding.title == "The files show no gaps"
    assert "whether they are complete is unknown" in finding.summary
    assert said(RULE, foreign(0), zero_rank(1)).title == "The record is complete"


def test_gaps_in_files_of_other_tools_are_not_blamed_on_a_recording():
    cut, lost, missing = judged(RULE, foreign(0, trailer=None, broken_lines=1))
    assert (missing.status, missing.ranks) == (Status.INFO, (1,))
    assert "doctor" not in missing.action
    assert cut.summary == "The files of rank 0 are truncated: the end is missing."
    assert "fewer steps" not in lost.action


def test_the_number_of_ranks_is_not_stated_where_it_is_unknown():
    ranks = [foreign(rank, 5) for rank in (0, 3, 4)]
    for rank in ranks:
        rank.is_world_known = False
    expected = "Nothing of ranks 1-2 was given; the number of ranks is unknown."
    assert said(RULE, *ranks).summary == expected


def test_missing_ranks_are_named():
    finding = said(RULE, zero_rank(1, 4))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert finding.ranks == (0, 2, 3)
    assert "traces of 3 of 4 ranks are missing: ranks 0, 2-3" in finding.summary


def test_a_skipped_file_is_named_as_the_cause_of_a_missing_rank(tmp_path):
    _, second = write_run(tmp_path)
    second.write_bytes(second.read_bytes().replace(b'"schema_version":1', b'"schema_version":9'))
    finding = _of_ranks(tmp_path)
    assert (finding.status, finding.ranks) == (Status.FAIL, (1,))
    assert finding.cause.startswith(f"Skipped: {second}: written in trace version 9, ")
    assert "all hosts" not in f"{finding.fix} {finding.action}"
    second.unlink()
    write_run(tmp_path / "before", started_epoch_ns=10**18)[1].rename(second)
    finding = _of_ranks(tmp_path)  # the file is of an earlier run
    assert finding.fix == "Give the files of all hosts together"


def _of_ranks(folder):
    findings = diagnose(find_run([folder])).findings
    return next(one for one in findings if one.rule == RULE.meta.id and one.ranks)


def test_a_disk_that_was_full_is_named_and_not_blamed_on_the_writer():
    error = {"disk_error": "No space left on device", "dropped": 90, "steps": 1500}
    ranks = [
        zero_rank(rank, 3, trailer=Trailer(reason="exit", **(error | {"lost_steps": lost})))
        for rank, lost in enumerate((1200, 7))
    ]
    [finding] = judged(RULE, *ranks, zero_rank(2, 3))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert finding.ranks == (0, 1)
    assert finding.summary == (
        "The disk refused records of up to 1,200 of 1,500 steps of ranks 0-1: No space left on "
        "device. Figures cover the rest."
    )
    assert "Free space" in finding.action


def test_a_full_disk_is_named_where_there_are_no_steps():
    [finding] = judged(RULE, *with_trailer(disk_error="Input/output error", dropped=90))
    assert finding.summary == (
        "The disk refused 90 records of rank 0: Input/output error. Figures cover the rest."
    )
    assert "0 of" not in finding.problem


def test_many_missing_ranks_are_a_range():
    assert "are missing: ranks 1-999." in said(RULE, zero_rank(0, 1000)).summary


def test_ranks_that_an_exception_ended_are_named_by_its_type():
    ends = [Trailer(reason="exit", exception=what) for what in ("RuntimeError", "ValueError", "")]
    finding = said(RULE, *(zero_rank(rank, 3, trailer=end) for rank, end in enumerate(ends)))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert finding.ranks == (0, 1)
    assert finding.summary == "The program failed: RuntimeError (rank 0), ValueError (rank 1)."


def test_the_only_rank_of_a_run_has_the_only_traceback() -> None:
    end = Trailer(reason="exit", exception="RuntimeError")
    finding = said(RULE, zero_rank(0, 1, trailer=end))
    assert finding.fix == "Find the traceback of rank 0 in the logs"
    assert finding.action == "Find the traceback of rank 0 in the logs."


def test_a_rank_that_only_lost_its_connection_is_not_the_cause():
    end = Trailer(reason="exit", exception="RuntimeError")
    lost = Trailer(reason="exit", exception="RuntimeError", lost="connection")
    finding = said(RULE, zero_rank(0, trailer=lost), zero_rank(1, trailer=end))
    assert finding.ranks == (1,)
    assert finding.summary == (
        "The program failed: RuntimeError (rank 1). Rank 0 then lost the connection or timed out."
    )
    assert finding.fix == "Find the traceback of rank 1 in the logs"


def test_a_rank_may_have_failed_because_the_kernel_killed_a_process_of_it():
    end = Trailer(reason="exit", exception="RuntimeError", oom_kills=1)
    finding = said(RULE, zero_rank(0, trailer=end), zero_rank(1, trailer=end))
    assert "The kernel killed 1 other process of its cgroup" in finding.cause
    assert "raise the job's memory limit" in finding.action


def test_ranks_that_all_lost_others_are_no_cause():
    lost = Trailer(reason="exit", exception="RuntimeError", lost="connection")
    finding = said(RULE, *(zero_rank(rank, trailer=lost) for rank in range(2)))
    assert (finding.severity, finding.ranks) == (Severity.HIGH, ())
    assert finding.cause == "No rank recorded an exception of its own."
    some = next(one for one in judged(RULE, zero_rank(0, 2, trailer=lost)) if "lost" in one.title)
    assert some.summary == (
        "Rank 0 lost the connection to another rank or timed out: RuntimeError."
    )
    assert (some.ranks, some.cause) == ((), "Another rank failed first; its trace was not read.")


def test_ranks_that_lost_one_without_memory_name_it() -> None:
    """How that rank ended is a finding of device-out-of-memory."""
    lost = Trailer(reason="exit", exception="RuntimeError", lost="connection")
    full = Trailer(reason="exit", exception="torch.OutOfMemoryError")
    finding = said(RULE, zero_rank(0, trailer=lost), zero_rank(1, trailer=full))
    assert (finding.status, finding.ranks) == (Status.INFO, (0,))
    assert finding.summary == (
        "Rank 0 ended by RuntimeError: the connection to another rank was lost. Rank 1 ran out of "
        "device memory."
    )
    assert finding.cause == "The exception is a consequence of the end of rank 1."


def test_ranks_whose_call_timed_out_are_no_failed_program() -> None:
    late = Trailer(reason="exit", exception="RuntimeError", lost="timeout")
    lost = Trailer(reason="exit", exception="RuntimeError", lost="connection")
    finding = said(RULE, zero_rank(0, trailer=late), zero_rank(1, trailer=lost))
    assert finding.summary == (
        "A call of rank 0 timed out: RuntimeError. Rank 1 lost the connection to another rank."
    )
    assert finding.problem == "A call of rank 0 timed out"
    assert "did not join the call in time" in finding.cause


def test_calls_that_timed_out_follow_from_the_rank_that_did_not_come() -> None:
    late = Trailer(reason="exit", exception="RuntimeError", lost="timeout")
    traces = [*without(3, trailer=late)[:3], without(3, trailer=None)[3]]
    finding = next(one for one in judged(RULE, *traces) if one.title == "Calls timed out")
    assert (finding.status, finding.ranks, finding.action) == (Status.INFO, (0, 1, 2), "")
    assert finding.cause.startswith("Rank 3 ")


@pytest.mark.parametrize("ended", [{"trailer": Trailer(reason="exit")}, left(650)])
def test_ranks_that_lost_one_that_had_ended_name_it(ended: dict[str, Any]) -> None:
    lost = Trailer(
        reason="exit", exception="RuntimeError", lost="connection", exception_ns=900 * MS
    )
    ends = {0: {"trailer": lost}, 1: {"trailer": lost}, 2: ended}
    traces = [replace(zero_rank(rank, world_size=3), **end) for rank, end in ends.items()]
    [finding] = [one for one in judged(RULE, *traces) if "lost the connection" in one.summary]
    assert finding.cause == "Rank 2 had ended without an exception before."
    assert finding.action == "Find out why rank 2 ran fewer iterations."


def test_a_rank_that_ended_badly_is_named():
    finding = said(RULE, zero_rank(0), zero_rank(1, trailer=None))
    assert finding.status is Status.FAIL
    assert finding.ranks == (1,)
    assert finding.summary == (
        "The record of rank 1 breaks off after step 5: killed, crashed, or still running. Last "
        "completed collective: all_reduce 6 of world on rank 1. No collective in flight was "
        "recorded."
    )
    assert "`ends early` there means a disk that is too slow" in finding.action
    assert finding.evidence[0].rows == tuple(
        (rank, ended, "all_reduce 6 of world", 5, "", 0)
        for rank, ended in (
            (0, "end of the process"),
            (1, "breaks off: killed, crashed, or still running"),
        )
    )


def test_ranks_that_ended_after_different_steps_are_named_with_the_first_and_the_last():
    def said_of(*steps):
        killed = (zero_rank(n, 3, steps=s, trailer=None) for n, s in enumerate(steps))
        return judged(RULE, *killed)[0].problem

    assert said_of(6, 4, 5) == "The records of ranks 0-2 break off after steps 3 to 5"
    assert said_of(6, 6, 0) == "The records of ranks 0-2 break off after step 5 at the latest"


def test_ranks_with_only_a_part_of_the_steps_are_named():
    traces = [zero_rank(0, 3, steps=20), zero_rank(1, 3, steps=20), zero_rank(2, 3, steps=12)]
    finding = said(RULE, *traces)
    assert finding.status is Status.INFO
    said_of_means = "there, means are over the other ranks."
    assert finding.summary == f"Rank 2 lacks a part of the steps; {said_of_means}"
    made = diagnosis_of(summary(*traces), {})
    assert made.quality.partial_ranks == [2]
    assert ("note", "Ranks", "3 of 3 present; only a part of the steps of rank 2") in [
        (line.level, line.label, line.text) for line in quality_lines(made)
    ]
    assert made.quality.line.startswith("3 of 3 ranks, 1 with only a part of the steps")
    assert said(RULE, *traces[:2], zero_rank(2, 3, steps=19)).status is Status.PASS


def test_ranks_that_mark_no_step_are_told_how_to():
    """As actors do, which send what a learner trains on."""
    traces = [zero_rank(0, 3, steps=20), *(zero_rank(n, 3, steps=0) for n in (1, 2))]
    summary_of = said(RULE, *traces).summary
    assert summary_of.startswith("Ranks 1-2 mark no step: ")
    assert "call dsprof.step() on all of them" in summary_of
    assert "lack" not in summary_of
    killed = judged(RULE, traces[0], zero_rank(1, 3, steps=0, trailer=None))
    assert not any("dsprof.step()" in one.summary for one in killed)


def test_a_rank_without_the_newest_steps_of_a_rolling_recording_is_named():
    traces = [zero_rank(n, steps=100 - 9 * n) for n in range(2)]
    traces[0].newest_from, traces[1].newest_from = 92, 83
    assert said(RULE, *traces).summary.startswith("Rank 1 lacks a part of the steps; there")


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (range(2, 5), "."),
        (range(3, 8), "."),  # rank 1 may have ended in the last of these, or later
        (range(3, 9), " after steps 5 to 7. Last completed collective: "),
        (range(3, OPEN_END), " after steps 5 to 7. Last completed collective: "),
    ],
)
def test_of_steps_that_were_chosen_the_last_is_not_called_the_end(tmp_path, steps, told):
    for number, count in enumerate((6, 8)):
        lines = run_events(header(number), count)[:-1]
        (tmp_path / f"trace.rank{number:05d}.json").write_bytes(encode(lines))
    made = diagnose(find_run([tmp_path], Selection(steps=steps)))
    [finding] = [one for one in made.findings if one.problem and one.rule == RULE.meta.id]
    summary = finding.summary.replace(": killed, crashed, or still running", "")
    assert summary.startswith(f"The records of ranks 0-1 break off{told}")
    assert bool(finding.evidence) is (told != ".")


def test_a_last_collective_of_a_group_that_the_file_lost_is_of_an_unknown_one():
    """A trace that was cut before its groups."""
    cut = zero_rank(1, trailer=None)
    cut.groups = {}
    summary = said(RULE, zero_rank(0), cut).summary
    assert " Last completed collective: all_reduce 6 of an unknown group on rank 1." in summary


def test_the_end_by_slurm_is_named_where_the_log_tells_it():
    log = RankLog()
    log.say(FROM_OUTSIDE, "time limit")
    first = zero_rank(0, trailer=None)
    first.log = log
    finding = said(RULE, first, zero_rank(1, trailer=None))
    assert finding.problem == "The job reached its time limit"
    assert finding.summary.startswith(
        "The job reached its time limit after step 5; the records of ranks 0-1 break off. Last "
    )
    first.log = RankLog()
    assert "break off" in said(RULE, first, zero_rank(1, trailer=None)).summary


def test_of_records_that_break_off_the_log_names_the_rank_that_failed_first():
    ranks = [zero_rank(number, 3, trailer=None) for number in range(2)]
    ranks.append(zero_rank(2, 3))
    ranks[1].log = RankLog()
    ranks[1].log.say(FAILED_FIRST, "signal SIGKILL")
    finding = said(RULE, *ranks)
    assert (finding.problem, finding.ranks) == ("Rank 1 (signal SIGKILL) failed first", (1,))
    assert finding.fix == "Check the memory of its host: `dmesg`"  # it left no traceback
    assert finding.summary.endswith("first after step 5; the records of ranks 0-1 break off.")
    ranks[2].log = RankLog()
    ranks[2].log.say(FAILED_FIRST, "exit code 1")  # sys.exit(1) closes the record
    assert said(RULE, *ranks).problem == (
        "Rank 1 (signal SIGKILL), rank 2 (exit code 1) failed first on their hosts"
    )


def test_a_rank_that_only_lost_another_did_not_fail_first_on_its_host():
    lost = Trailer(reason="exit", exception="RuntimeError", lost="connection")
    ranks = [zero_rank(number, 3, trailer=lost) for number in range(2)]
    ranks.append(zero_rank(2, 3, trailer=None))
    for rank, how in ((1, "exit code 1"), (2, "signal SIGKILL")):  # each first on its host
        ranks[rank].log = RankLog()
        ranks[rank].log.say(FAILED_FIRST, how)
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
    killed = [zero_rank(number, trailer=None) for number in range(2)]
    killed[1].log = RankLog()
    killed[1].log.say(FAILED_FIRST, how)
    assert said(RULE, *killed).fix == fix


RAISED = Trailer(
    reason="exit",
    exception="ValueError",
    exception_ns=600 * MS,
    raised_at="/home/me/job/train.py:9 main",
)


def test_a_rank_that_failed_by_itself_comes_before_those_that_its_launcher_killed() -> None:
    killed, failed = zero_rank(0, trailer=None), zero_rank(1, trailer=RAISED)
    first, later = judged(RULE, killed, failed)
    assert first.summary == "The program failed: ValueError (rank 1 at job/train.py:9)."
    assert (first.status, first.fix) == (Status.FAIL, "Find the traceback of rank 1 in the logs")
    assert (later.status, later.ranks) == (Status.INFO, (0,))
    assert later.summary == (
        "The record of rank 0 breaks off after step 5: probably killed because rank 1 failed."
    )
    failed.log = RankLog()
    failed.log.say(FAILED_FIRST, "exit code 1")  # the trace knows more of it
    assert judged(RULE, killed, failed)[0].summary == first.summary


@pytest.mark.parametrize("change", [{"lost": "connection"}, {"exception_ns": 60_000 * MS}])
def test_a_record_that_breaks_off_before_others_fail_stays_a_problem(change) -> None:
    failed = zero_rank(1, trailer=structs.replace(RAISED, **change))
    [cut] = [f for f in judged(RULE, zero_rank(0, trailer=None), failed) if f.ranks == (0,)]
    assert (cut.status, cut.title) == (Status.FAIL, "Records break off")


def test_a_rank_that_had_exited_may_have_failed_by_its_exit_code() -> None:
    cut = said(RULE, zero_rank(0, trailer=None), zero_rank(1))
    assert "Rank 1 had exited without an exception" in cut.cause
    disabled = zero_rank(1, trailer=Trailer(reason="disable"))
    assert "exited without" not in said(RULE, zero_rank(0, trailer=None), disabled).cause


def test_ranks_that_end_with_one_that_was_interrupted_are_no_problem() -> None:
    stopped = zero_rank(1, trailer=Trailer(reason="interrupted"))
    cut = judged(RULE, zero_rank(0, trailer=None), stopped)[0]
    assert cut.status is Status.INFO
    assert cut.summary.endswith("probably killed because rank 1 ended by Ctrl-C.")


@pytest.mark.parametrize(
    ("fact", "problem"),
    [
        ((FROM_OUTSIDE, "SIGTERM"), "SIGTERM ended torchrun and its ranks"),
        ((LAUNCHER, HOST_MEMORY), "A process took more host memory than Slurm granted"),
    ],
)
def test_of_records_that_break_off_a_log_tells_the_cause(fact, problem):
    killed = [zero_rank(number, trailer=None) for number in range(2)]
    killed[0].log = RankLog()
    killed[0].log.say(*fact)
    assert said(RULE, *killed).problem == problem
    killed[0].log.say(FAILED_FIRST, "exit code 1")  # of which the others are consequences
    assert said(RULE, *killed).problem == "Rank 0 (exit code 1) failed first"


def logged(*facts, of_rank_0=None):
    """Ranks of which only logs tell, each with a fact."""
    ranks = [foreign(rank, len(facts)) for rank in range(len(facts))]
    for rank, (kind, value) in zip(ranks, facts, strict=True):
        rank.log = RankLog()
        rank.log.say(kind, value)
    ranks[0].log.add(of_rank_0 or RankLog())
    return ranks


def test_of_a_run_that_failed_the_log_names_the_rank_that_did_so_first():
    first = (FAILED_FIRST, "exit code 1")
    finding = said(RULE, *logged((FAILED, "failed"), first))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert (finding.problem, finding.ranks) == ("Rank 1 (exit code 1) failed first", (1,))
    killed = (FAILED_FIRST, "signal SIGKILL")
    finding = said(RULE, *logged(first, first, killed))
    assert finding.problem == (
        "Ranks 0-1 (exit code 1), rank 2 (signal SIGKILL) failed first on their hosts"
    )
    assert "out of memory" in finding.cause
    several = [(FAILED_FIRST, f"exit code {code}") for code in (1, 2, 3)]
    assert said(RULE, *logged(*several)).problem == "Ranks 0-2 failed first on their hosts"


def test_a_process_of_unknown_rank_that_failed_is_reported_without_a_rank():
    finding = said(RULE, *logged((LAUNCHER, "exit code 2")))
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
    finding = said(RULE, *logged((FROM_OUTSIDE, how)))
    assert (finding.status, finding.summary) == (Status.FAIL, f"{problem}.")
    assert finding.ranks == ()


def test_an_end_that_another_rule_explains_is_not_reported_twice():
    failed = (FAILED_FIRST, "exit code 1")
    memory = RankLog(out_of_memory=[OutOfMemory(0, 1, 2, 0, 2, 0)])
    late = RankLog(timeouts=[CollectiveTimeout("all_reduce")])
    for explained in (memory, late):
        assert said(RULE, *logged(failed, of_rank_0=explained)).status is Status.PASS
    broken = RankLog(warnings={"NCCL error: unhandled cuda error": 1})
    assert said(RULE, *logged((LAUNCHER, "exit code 1"), of_rank_0=broken)).status is Status.PASS
    assert said(RULE, *logged(failed, of_rank_0=broken)).status is Status.FAIL


def test_of_a_killed_rank_on_a_device_it_is_not_known_what_was_in_flight():
    head = header(1, device="cuda")
    finding = said(RULE, zero_rank(0), zero_rank(1, trailer=None, head=head))
    assert "awaited" not in finding.summary


def test_ctrl_c_is_information_with_the_last_step():
    ends = [Trailer(reason="interrupted"), Trailer(reason="exit")]
    finding = said(RULE, *(zero_rank(rank, trailer=end) for rank, end in enumerate(ends)))
    assert (finding.status, finding.ranks) == (Status.INFO, (0,))
    assert finding.summary == (
        "Ctrl-C ended rank 0 after step 5. Last completed collective: all_reduce 6 of world on "
        "rank 0."
    )


def test_what_ranks_waited_in_when_they_were_killed_is_named():
    def hung(rank, **fields):
        return zero_rank(rank, trailer=None, **fields)

    def last(number, start):
        return [issued("broadcast", start + 90, None, step=number)] if number == 5 else []

    waiting = hung(0, extra=last)
    waiting.collectives.is_open[:] = waiting.collectives.done_ns == 0
    finding = said(RULE, waiting, hung(1))
    assert finding.summary.endswith("In flight at the end: broadcast 0 of world on rank 0.")
    assert "In flight" not in said(RULE, hung(0), hung(1)).summary
    other = hung(1, extra=last)
    other.collectives.is_open[:] = other.collectives.done_ns == 0
    other.collectives.seq[:] = 7
    assert said(RULE, waiting, other).summary.endswith(
        "broadcast 0 of world on rank 0; broadcast 7 of world on rank 1."
    )


def test_a_damaged_file_is_copied_again_before_another_run_is_recorded():
    damaged, dropped = (
        next(f for f in judged(RULE, *traces) if f.problem == "Parts of the record are lost").action
        for traces in ((zero_rank(0, broken_lines=3), zero_rank(1)), with_trailer(dropped=1))
    )
    assert damaged.startswith("Copy the file again")
    assert dropped.startswith("Write to a faster disk")


@pytest.mark.parametrize(
    ("traces", "text"),
    [
        (with_trailer(dropped=1200), "1,200 dropped events"),
        ((zero_rank(0, broken_lines=1), zero_rank(1)), "1 unreadable line."),
    ],
    ids=["dropped", "broken"],
)
def test_lost_parts_are_counted(traces, text):
    finding = said(RULE, *traces)
    assert finding.status is Status.FAIL
    assert text in finding.summary


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"unmatched_waits": 7}, "7 waits could not be matched"),
        ({"budget_spent": True}, "The trace reached budget_mb"),
        ({"hooks_ns": 60 * MS}, "Recording took about 5 % of the time in steps (estimate)"),
        ({"given_up": 3}, "3 collectives not followed: too many others"),
        ({"failed_hooks": {"c10d": "it broke"}}, "hook c10d switched itself off: it broke"),
    ],
)
def test_what_makes_figures_less_exact_is_mentioned(fields, text):
    finding = said(RULE, *with_trailer(**fields))
    assert finding.status is Status.INFO
    assert text in finding.summary


@pytest.mark.parametrize(
    ("window", "text"),
    [
        (range(4, 7), "7 of 10 steps were only counted and are excluded from averages"),
        (range(0), "10 of 10 steps were only counted; the verdicts use the counters"),
    ],
)
def test_steps_in_counters_are_counted(window, text):
    finding = said(RULE, *(captured(rank, window=window, steps=10) for rank in (0, 1)))
    assert (finding.status, finding.title) == (
        Status.INFO,
        "Limits of the figures",
    )
    assert text in finding.summary


def going_on(at_ms: float, config=None, **fields) -> list[RankTrace]:
    """Return ranks of which one communicates once more after 600 ms of steps."""

    def more(number: int, start: float) -> list[Line]:
        return [sync("all_gather", at_ms, 100, seq=99, step=6)] * (number == 5)

    ends = {"trailer": Trailer(reason="exit"), **fields}
    ranks = [zero_rank(0, **ends), zero_rank(1, extra=more, **ends)]
    for rank in ranks:
        rank.header.config = config or {}
    return ranks


def test_communication_after_the_last_step_is_mentioned() -> None:
    finding = said(RULE, *going_on(2500))
    assert finding.status is Status.INFO
    told = "exclude 2.00 s in which rank 1 communicated after its last step (1 collective)"
    assert f"{told}, such as an evaluation or a checkpoint." in finding.summary


def test_communication_of_a_rank_that_failed_may_be_of_a_step_that_did_not_end() -> None:
    failed = going_on(2500, trailer=Trailer(reason="exit", exception="RuntimeError"))
    summaries = " ".join(finding.summary for finding in judged(RULE, *failed))
    assert "its last step (1 collective), such as a step that did not end." in summaries


@pytest.mark.parametrize(
    ("at_ms", "fields"),
    [
        (1000, {}),  # soon over
        (2500, {"trailer": Trailer(reason="exit", dropped=1)}),  # steps may be missing
        (2500, {"config": {"steps": 6}}),  # more were not to be recorded
    ],
)
def test_steps_may_go_on_after_the_last_one_that_is_known(at_ms, fields) -> None:
    found = judged(RULE, *going_on(at_ms, **fields))
    assert not [one for one in found if "after its last step" in one.summary]


def test_cost_below_the_threshold_is_not_mentioned():
    assert said(RULE, *with_trailer(hooks_ns=6 * MS)).status is Status.PASS


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"strangers": ("old.json: of an earlier run",)}, "Skipped 1 file, named under"),
        ({"strangers": tuple("abcdefg")}, "Skipped 7 files, named under data quality."),
        ({"clock_bound_ns": 3 * MS}, "aligned to 3.00 ms"),
        ({"clock_bound_ns": None, "clock_method": "wall clocks"}, "by wall clocks"),
    ],
    ids=["stranger", "strangers", "bound", "wall clocks"],
)
def test_strangers_and_clocks_are_mentioned(changes, text):
    run = summary(zero_rank(0), zero_rank(1))
    (finding,) = judge(run.with_part(replace(run[Run], **changes)), [RULE])
    assert finding.status is Status.INFO
    assert text in finding.summary


def test_each_kind_of_gap_is_a_finding_of_its_own():
    findings = judged(RULE, zero_rank(1, 4, trailer=None, broken_lines=1))
    assert [finding.status for finding in findings] == [Status.FAIL] * 3


def of_ray(*traces: RankTrace) -> list[RankTrace]:
    """Return ranks as those of a job of Ray."""
    for trace in traces:
        trace.environment = EnvSnapshot(variables={"RAY_JOB_ID": "01000000"})
    return [*traces]


def test_workers_that_ray_ended_are_a_small_problem_with_its_remedy() -> None:
    finding = said(RULE, *of_ray(zero_rank(0, trailer=None), zero_rank(1, trailer=None)))
    assert (finding.severity, finding.confidence) == (Severity.LOW, "medium")
    assert finding.summary == (
        "The records of ranks 0-1 break off after step 5, when Ray ended them."
    )
    assert "dsprof.disable()" in finding.action


@pytest.mark.parametrize(
    ("fields", "missing"),
    [(left(650), "nothing"), (left(650, is_written=False), "up to the last 50.0 ms")],
    ids=["written", "kept"],
)
def test_ranks_that_left_their_group_before_they_were_killed_are_no_problem(
    fields: dict[str, Any], missing: str
) -> None:
    run = summary(*of_ray(*(zero_rank(n, **fields) for n in range(2))))
    (finding,) = judged_summary(RULE, run)
    assert (finding.status, finding.ranks) == (Status.INFO, (0, 1))
    assert finding.summary == (
        "Ranks 0-1 destroyed the process group after step 5, then did not close their records: "
        f"{missing} before that is missing."
    )
    assert (run[Run].unclean_ranks, run[Run].left_ranks) == ([], [0, 1])
    assert "destroy_process_group(); the record was not closed" in finding.evidence[0].rows[0]
    found = diagnosis_of(run, {})
    assert "2 records not closed" in found.quality.line
    lines = {line.label: line for line in quality_lines(found)}
    assert (lines["End of the run"].level, lines["Events"].level) == ("note", "note")


@pytest.mark.parametrize("how", ["exit code 1", "signal SIGSEGV"])
def test_a_rank_that_closed_its_record_may_have_failed_as_a_log_says(how: str) -> None:
    ranks = [zero_rank(0), zero_rank(1)]
    ranks[0].log = RankLog()
    ranks[0].log.say(FAILED_FIRST, how)
    finding = said(RULE, *ranks)
    assert (finding.status, finding.ranks, finding.confidence) == (Status.INFO, (0,), "medium")
    assert finding.summary == (
        f"Rank 0 ({how}) failed first, as the log says, and closed its record without an error."
    )
    ranks[0].trailer = Trailer("interrupted")
    assert "log" not in said(RULE, *ranks).summary


def test_how_long_a_rank_lived_on_is_said() -> None:
    lives = [heartbeat(60_650)]
    assert "(), and lived for another 60.0 s." in (
        said(RULE, zero_rank(0, **left(650), heartbeats=lives), zero_rank(1)).cause
    )


def test_a_rank_that_hung_after_its_process_group_is_a_problem_whatever_ended_it() -> None:
    end = left(650, is_written=False)
    end["state"].stacks_ns = end["state"].left_ns + 10**10
    ranks = [zero_rank(0, **end), zero_rank(1, **left(650))]
    hung, others = judged(RULE, *ranks)
    assert (hung.problem, hung.ranks) == ("Rank 0 hung after destroy_process_group()", (0,))
    assert (hung.status, others.status, others.ranks) == (Status.FAIL, Status.INFO, (1,))
    assert hung.cause == "Rank 0 is in a call that does not release the interpreter lock."
    ranks[0].log = RankLog()
    ranks[0].log.say(FROM_OUTSIDE, "time limit")
    others, hung = judged(RULE, *ranks)
    assert (hung.ranks, others.problem) == ((0,), "The job reached its time limit")


def test_a_rank_that_died_while_others_had_left_is_the_problem() -> None:
    found = judged(RULE, zero_rank(0, **left(650)), zero_rank(1, trailer=None))
    assert [(one.status, one.ranks) for one in found] == [(Status.FAIL, (1,)), (Status.INFO, (0,))]


@pytest.mark.parametrize(
    ("fact", "problem"),
    [
        ((FAILED_FIRST, "signal SIGSEGV"), "Rank 0 (signal SIGSEGV) failed first"),
        ((FROM_OUTSIDE, "time limit"), "The job reached its time limit"),
        ((LAUNCHER, HOST_MEMORY), "A process took more host memory than Slurm granted"),
    ],
)
def test_of_ranks_that_left_their_group_a_log_tells_what_ended_them(
    fact: tuple[str, str], problem: str
) -> None:
    ranks = [zero_rank(n, **left(650)) for n in range(2)]
    ranks[0].log = RankLog()
    ranks[0].log.say(*fact)
    assert said(RULE, *ranks).problem == problem


def test_a_rank_that_left_its_group_breaks_off_if_the_kernel_killed_it_for_memory() -> None:
    found = judged(
        RULE, zero_rank(0, **left(650)), zero_rank(1, trailer=Trailer("exit", oom_kills=1))
    )
    assert (found[0].status, found[0].ranks) == (Status.FAIL, (0,))


def test_a_rank_that_left_its_group_may_have_failed_after_that() -> None:
    failed = Trailer("exit", "ValueError", exception_ns=700 * MS)
    finding = judged(RULE, zero_rank(0, **left(650) | {"trailer": failed}), zero_rank(1))[0]
    assert (finding.problem, finding.ranks) == ("The program failed: ValueError (rank 0)", (0,))


@pytest.mark.parametrize(
    "traces",
    [
        of_ray(zero_rank(0, trailer=None), zero_rank(1, steps=5, trailer=None)),
        of_ray(zero_rank(0, trailer=None), zero_rank(1)),
        of_ray(zero_rank(0, trailer=None)),
        [*of_ray(zero_rank(0, trailer=None)), zero_rank(1, trailer=None)],
        of_ray(*without(2, trailer=None)),
    ],
    ids=["unequal steps", "one has ended", "one is missing", "one is not of Ray", "in flight"],
)
def test_other_ends_under_ray_stay_a_severe_problem(traces: list[RankTrace]) -> None:
    cut = [f for f in judged(RULE, *traces) if f.title == "Records break off"]
    assert [one.severity for one in cut] == [Severity.HIGH]
