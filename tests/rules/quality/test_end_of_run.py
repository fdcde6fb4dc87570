"""What data-quality says of how the ranks of a run ended, as their records show."""

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
from dsprof.rules.quality.data_quality import DataQuality
from dsprof.trace.rank_log import FAILED_FIRST, FROM_OUTSIDE
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.run import find_run
from dsprof.trace.schema import Trailer
from dsprof.trace.selection import OPEN_END, Selection
from tests.factories.hangs import left, without
from tests.factories.logs import telling
from tests.factories.trace import (
    MS,
    header,
    heartbeat,
    issued,
    judged,
    judged_summary,
    said,
    summary,
    zero_rank,
)
from tests.factories.trace_files import encode, run_events

RULE = DataQuality()


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
    failed.log = telling({FAILED_FIRST: "exit code 1"})  # the trace knows more of it
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
    ranks[0].log = telling({FROM_OUTSIDE: "time limit"})
    others, hung = judged(RULE, *ranks)
    assert (hung.ranks, others.problem) == ((0,), "The job reached its time limit")


def test_a_rank_that_died_while_others_had_left_is_the_problem() -> None:
    found = judged(RULE, zero_rank(0, **left(650)), zero_rank(1, trailer=None))
    assert [(one.status, one.ranks) for one in found] == [(Status.FAIL, (1,)), (Status.INFO, (0,))]


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
