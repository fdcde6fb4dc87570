"""Four ranks whose run is ended from outside, by hand-made traces; times in ms."""

from __future__ import annotations

from typing import Any

import pytest

from dsprof.diagnosis.build import diagnosis_of
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.rules.communication.mismatched_collective import MismatchedCollective
from dsprof.rules.communication.stuck_collective import StuckCollective
from dsprof.trace.dumps.hang_dump import HangDump, ThreadStack
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Note, Trailer
from tests.factories.hangs import (
    CTRL_C,
    END,
    EXIT,
    KEPT,
    KILLED,
    RANKS,
    pair,
    raised,
    rank,
    waits,
    without,
)
from tests.factories.trace import (
    alive,
    counters,
    enqueued,
    failing,
    group,
    hanging,
    header,
    heartbeat,
    issued,
    judged,
    rank_trace,
    said,
    stall,
    step,
    summary,
    sync,
)

RULE = StuckCollective()


def test_where_most_traces_of_a_group_are_missing_all_are_asked_for() -> None:
    finding = said(RULE, rank(1, [waits()], **KILLED))
    assert finding.summary.startswith("3 of 4 traces are missing")
    assert finding.cause.startswith("Their files were not given")
    assert finding.action == "Copy the traces of all hosts into one folder."


@pytest.mark.parametrize(("in_flight", "is_idle"), [(0, True), (2, False)])
def test_the_last_heartbeat_tells_what_the_rank_had_in_flight(
    in_flight: int, is_idle: bool
) -> None:
    beats = [heartbeat(END - 5000, 7), heartbeat(END, in_flight, 900)]
    finding = said(RULE, *without(2, memory=[], heartbeats=beats, **KILLED))
    assert "Rank 2 was still alive 41.0 s after" in finding.cause
    assert ("entered, with no collective in flight: it was" in finding.cause) == is_idle
    [row] = [row for row in finding.evidence[-1].rows if row[0] == 2]
    assert row[-2:] == (in_flight, 900_000_000)


def test_a_heartbeat_before_the_last_record_says_nothing_of_the_end() -> None:
    early = [heartbeat(50)]
    finding = said(RULE, *without(2, heartbeats=early, **KILLED))
    assert "with no collective in flight" not in finding.cause
    assert "in flight" not in [column.label for column in finding.evidence[-1].columns]


@pytest.mark.parametrize("end", [CTRL_C, EXIT, KILLED], ids=["ctrl-c", "exit", "killed"])
def test_who_never_came_is_named_with_the_collective(end: dict[str, Any]) -> None:
    finding = said(RULE, *without(2, **end))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.CRITICAL)
    assert (finding.ranks, finding.confidence) == ((2,), "medium" if end is KILLED else "high")
    assert finding.summary == (
        "Rank 2 never entered all_reduce 4 of group world (4.00 MiB, step 12); ranks 0-1, 3 "
        "waited 41.0 s in it."
    )
    assert "Rank 2 was still alive 41.0 s after the first rank entered" in finding.cause
    assert "after all_reduce 3 of world, called at train.py:40 train" in finding.action
    _, last = finding.evidence
    assert [row[0] for row in last.rows] == [2, 0, 1, 3]


@pytest.mark.parametrize(
    ("frame", "remedy"),
    [
        ("/usr/lib/python3.11/queue.py:171 get", "Find out which thread holds the lock"),
        (
            "/x/torch/utils/data/dataloader.py:1251 _try_get_data",
            "Find out what the workers of its DataLoader wait for",
        ),
        ("/usr/lib/python3.11/subprocess.py:2046 _wait", "Find out what the child process of"),
    ],
)
def test_the_remedy_fits_a_cause_that_is_known(frame: str, remedy: str) -> None:
    threads = [ThreadStack("MainThread", (frame, "train.py:50 train"))]
    dump = HangDump(header(), 0, 10**15, "quiet", threads=threads)
    traces = without(2, **KEPT)
    traces[2].hang_dump = dump
    finding = said(RULE, *traces)
    assert finding.ranks == (2,)
    assert finding.action.startswith(remedy)
    assert "py-spy dump --pid" in finding.action
    if "lock" in remedy:
        assert "at train.py:50 train" in finding.action


def test_ranks_that_wait_in_a_call_that_is_not_recorded_are_reported() -> None:
    """As the stacks of a dump show: to create a group is no collective of c10d."""
    creates = "/x/torch/distributed/distributed_c10d.py:5435 new_group"
    traces = [rank(n, [], **KEPT) for n in range(RANKS)]
    for trace in traces:
        frames = ("train.py:50 train",) if trace.rank == 2 else (creates, "train.py:51 train")
        threads = [ThreadStack("MainThread", frames)]
        trace.hang_dump = HangDump(header(), 0, 10**15, "quiet", threads=threads)
    finding = said(RULE, *traces)
    assert (finding.ranks, finding.confidence) == ((2,), "medium")
    assert finding.title == "Ranks did not join collectives that others wait in"
    assert finding.summary == "Ranks 0-1, 3 wait in new_group, which rank 2 did not call."


def test_who_exited_before_the_others_is_to_run_as_many_iterations() -> None:
    finding = said(RULE, *without(2, **CTRL_C)[:2], rank(2, [], 900, **EXIT), rank(3, [waits()]))
    assert finding.ranks == (2,)
    assert finding.action.startswith("Run as many iterations on rank 2 as on the others")


def test_a_rank_that_was_killed_before_is_named_as_that() -> None:
    waiting = {
        "comm": [failing("all_reduce", 1000, 5, seq=4, nbytes=4 << 20)],
        **raised("RuntimeError"),
    }
    traces = [rank(n, **waiting) for n in (0, 1, 3)]
    finding = said(RULE, *traces, rank(2, [], 900, **KILLED))
    assert (finding.ranks, finding.confidence) == ((2,), "medium")
    assert "until an exception" in finding.summary
    assert "breaks off earlier" in finding.cause
    assert finding.action.startswith("Find out what killed rank 2")
    assert "`dmesg > dmesg-$(hostname).txt`" in finding.action  # the log does not name its host


def test_the_exception_that_kept_a_rank_away_is_named() -> None:
    """The others fail within milliseconds: gloo sees the connection close."""
    broken = [failing("all_reduce", 1000, 2, seq=4)]
    others = [rank(n, broken, **raised("RuntimeError")) for n in (0, 1, 3)]
    finding = said(RULE, *others, rank(2, [], 900, **raised("ValueError")))
    assert (finding.ranks, finding.cause) == ((2,), "Rank 2 ended by ValueError.")
    assert finding.problem == "Rank 2 ended by ValueError"
    assert "for the traceback" in finding.action


def test_a_rank_without_collectives_has_no_last_one() -> None:
    """A stage of a pipeline fails in its first step: it has sent and received only."""
    world = {1: group(2)}
    broken = [failing("recv", 1000, 2, seq=1, peer=1)]
    waiting = rank_trace(0, 2, comm=broken, groups=world, **raised("RuntimeError"))
    failed = rank_trace(1, 2, comm=[], groups=world, **raised("ValueError"))
    finding = said(RULE, waiting, failed)
    assert finding.action == "Look at the end of the log of rank 1 for the traceback."


def test_what_a_rank_never_called_did_not_complete() -> None:
    """Ctrl-C ended rank 2 first; the Works of the others call themselves completed then."""
    gone = issued("all_reduce", 1000, 9000, seq=4)
    traces = [rank(n, [] if n == 2 else [gone], **CTRL_C) for n in range(RANKS)]
    finding = said(RULE, *traces)
    assert finding.ranks == (2,)
    assert "ranks 0-1, 3 waited 8.00 s in it" in finding.summary


def test_a_collective_that_all_have_entered_is_not_where_a_rank_is_missing() -> None:
    """Ranks 0 and 1 both entered theirs earlier; rank 2 is absent from that of all."""
    groups = {1: group(RANKS), 2: pair(0, 1)}
    both = hanging("all_reduce", 500, seq=1, group=2)
    calls = [[both, waits()], [both, waits()], [], [waits()]]
    finding = said(RULE, *(rank(n, comm, groups=groups, **KILLED) for n, comm in enumerate(calls)))
    assert finding.ranks == (2,)
    assert finding.summary.startswith("Rank 2 never entered all_reduce 4 of group world")


def test_ranks_that_wait_for_each_other_are_deadlocked() -> None:
    groups = {1: group(RANKS), 2: pair(0, 1), 3: pair(1, 2), 4: pair(0, 2)}
    comm = {n: [hanging("all_reduce", 1000, seq=1, group=n + 2)] for n in range(3)}
    traces = [rank(n, comm.get(n, [waits()]), groups=groups, **KILLED) for n in range(RANKS)]
    finding = said(RULE, *traces)
    assert (finding.title, finding.ranks) == ("Ranks are deadlocked", (0, 1, 2))
    assert "Rank 0 waits in all_reduce 1 of group pair 0-1 (1.00 MiB) for rank 1" in finding.summary


def test_a_receive_that_no_send_answers_names_the_sender() -> None:
    one = [sync("recv", 500, 1, seq=1, peer=2), hanging("recv", 1000, seq=2, peer=2)]
    two = [sync("send", 500, 1, seq=1, peer=1)]
    calls = [[waits()], one, two, [waits()]]
    finding = said(RULE, *(rank(n, comm, **KEPT) for n, comm in enumerate(calls)))
    assert finding.ranks == (2,)
    assert finding.summary.startswith("Rank 2 never entered the send that recv 2 of group world")


def test_a_receive_that_an_error_ended_is_not_answered_either() -> None:
    gone = issued("recv", 1000, 5000, seq=1, peer=2)
    calls = [[waits()], [gone], [], [waits()]]
    finding = said(RULE, *(rank(n, comm, **CTRL_C) for n, comm in enumerate(calls)))
    assert finding.ranks == (2,)
    assert "rank 1 waited 4.00 s in it" in finding.summary
    answered = [[], [gone], [sync("send", 1000, 1, seq=1, peer=1)], []]
    assert said(RULE, *(rank(n, c) for n, c in enumerate(answered))).status is Status.PASS


def test_a_rank_without_a_file_is_suspect() -> None:
    finding = said(RULE, *(trace for trace in without(2, **KILLED) if trace.rank != 2))
    assert (finding.status, finding.ranks, finding.confidence) == (Status.FAIL, (2,), "low")
    assert finding.summary.startswith("No trace of rank 2 was read")


def test_what_the_run_said_of_a_rank_without_a_file_is_believed() -> None:
    told = Note(
        "Rank 2 never entered it. Rank 2 sleeps at a.py:1 f.", int(END * 1e6), hang_ranks=(2,)
    )
    missing = [trace for trace in without(2, notes=[told], **KILLED) if trace.rank != 2]
    finding = said(RULE, *missing)
    assert (finding.ranks, finding.confidence, finding.summary) == ((2,), "medium", told.text)
    assert "No trace of rank 2 was read." in finding.cause
    few = said(RULE, rank(1, [waits()], notes=[told], **KILLED))
    assert (few.ranks, few.summary) == ((2,), told.text)
    assert "3 of 4 traces are missing." in few.cause
    early = Note(told.text, 900_000_000, hang_ranks=(2,))
    before = said(RULE, rank(1, [waits()], notes=[early], **KILLED))
    assert before.summary.startswith("3 of 4 traces are missing")


def test_what_all_had_entered_names_the_rank_that_died_in_it() -> None:
    broken = [failing("all_reduce", 1000, 5, seq=4, nbytes=4 << 20)]
    others = [rank(n, broken, **raised("RuntimeError")) for n in (0, 1, 3)]
    finding = said(RULE, *others, rank(2, [waits()], 1100, **KILLED))
    assert (finding.ranks, finding.confidence) == ((2,), "medium")
    assert finding.summary.startswith("Every rank entered all_reduce 4 of group world")


def test_what_all_entered_and_no_host_waited_for_at_a_clean_end_is_not_stuck() -> None:
    """A program that never calls wait() exits while the last ones are in flight."""
    left = [rank(n, [waits()], **EXIT) for n in range(RANKS)]
    assert said(RULE, *left).status is Status.PASS
    killed = rank(0, [waits()], **KILLED)
    assert said(RULE, killed, *left[1:]).status is Status.FAIL


def on_device(number: int, calls: int, **fields: Any) -> RankTrace:
    """A rank that enqueued so many all-reduces, of which the device ended three."""
    comm = [enqueued("all_reduce", 100.0 * n, seq=n) for n in range(1, calls + 1)]
    stalls = [stall(one, "wait", 100 * n, 100 * n + 9) for n, one in enumerate(comm[:3], 1)]
    head = header(number, RANKS, device="cuda", backend="nccl")
    given: dict[str, Any] = {"groups": {1: group(RANKS)}, "memory": [alive(END)], **fields}
    return rank_trace(number, RANKS, comm=comm, stalls=stalls, head=head, **given)


def test_on_a_device_the_first_collective_that_a_rank_did_not_enqueue_is_named() -> None:
    """NCCL's watchdog ends the processes, without a trailer; the others were far ahead."""
    finding = said(RULE, *(on_device(n, 4 if n == 2 else 9, **KILLED) for n in range(RANKS)))
    assert finding.ranks == (2,)
    assert finding.summary.startswith("Rank 2 never entered all_reduce 5 of group world")


@pytest.mark.parametrize("end", [KILLED, EXIT], ids=["killed", "exit"])
def test_on_a_device_equal_counts_prove_nothing(end: dict[str, Any]) -> None:
    finding = said(RULE, *(on_device(n, 9, **end) for n in range(RANKS)))
    assert finding.status is (Status.UNKNOWN if end is KILLED else Status.PASS)


# -- no false alarm --------------------------------------------------------------------------------


def healthy() -> list[list[RankTrace]]:
    short = [
        rank(n, [waits(at=1000)] if n != 2 else [], 1000 + 100 * n, **KILLED) for n in range(RANKS)
    ]
    never_awaited = [
        rank(n, [hanging("all_reduce", 1000, seq=4, is_async=True)], 1300) for n in range(RANKS)
    ]
    off = {"trailer": Trailer(reason="disable")}
    switched_off = [
        rank(n, [waits()] if n < 3 else [], **(CTRL_C if n < 3 else off)) for n in (0, 3)
    ]
    dropped = {"trailer": Trailer(reason="exit", dropped=5)}
    missed = [
        rank(n, [waits()] if n != 2 else [], **(dropped if n == 2 else CTRL_C)) for n in (1, 2)
    ]
    broken = [
        rank(n, [waits()] if n != 2 else [], broken_lines=3 * (n == 2), **CTRL_C) for n in (1, 2)
    ]
    only_counted = {"counters": [counters(9, calls=8)], **KILLED}
    window = [rank(n, [waits(12)] if n != 2 else [], **only_counted) for n in range(RANKS)]
    return [short, never_awaited, switched_off, missed, broken, window]


@pytest.mark.parametrize(
    ("config", "is_proven"),
    [({}, True), ({"every": 1}, True), ({"every": 5}, False), ({"start_step": 2}, False),
     ({"steps": 4}, False), ({"start_step": 0}, True)],
)  # fmt: skip
def test_only_a_killed_rank_that_recorded_all_steps_proves_what_it_never_called(
    config: dict[str, Any], is_proven: bool
) -> None:
    heads = [header(n, RANKS, config=config) for n in range(RANKS)]
    traces = [rank(n, [] if n == 2 else [waits()], head=heads[n], **KILLED) for n in range(RANKS)]
    assert ("Rank 2 never entered" in said(RULE, *traces).summary) is is_proven


@pytest.mark.parametrize("traces", healthy())
def test_what_is_not_proven_names_nobody(traces: list[RankTrace]) -> None:
    for finding in judged(RULE, *traces):
        assert finding.severity is not Severity.CRITICAL or finding.confidence == "low"
        assert "never" not in finding.summary


def test_a_run_that_ended_well_passes() -> None:
    assert said(RULE, *(rank(n, []) for n in range(RANKS))).status is Status.PASS


def test_collectives_that_were_only_counted_are_counted() -> None:
    """Outside the window four more ended, and all ranks had the eighth in flight."""
    traces = [
        rank(n, [waits(8)], counters=[counters(5, calls=4)], **CTRL_C) for n in range(RANKS - 1)
    ]
    finding = said(RULE, *traces, rank(3, [], counters=[counters(5, calls=4)], **CTRL_C))
    assert finding.ranks == (3,)
    late = rank(3, [], counters=[counters(5, calls=5)], **CTRL_C)
    assert said(RULE, *traces, late).ranks == ()


def test_a_timeout_that_the_program_survived_is_no_hang() -> None:
    survived = [failing("all_reduce", 1000, 2000, seq=4), sync("all_reduce", 4000, 5, seq=5)]
    ended = [sync("all_reduce", 2900, 110, seq=4), sync("all_reduce", 4000, 5, seq=5)]
    calls = [survived, survived, ended, survived]
    assert said(RULE, *(rank(n, c) for n, c in enumerate(calls))).status is Status.PASS


def test_ranks_that_began_to_record_at_different_moments_are_not_compared() -> None:
    late = [sync("all_reduce", 200, 10, seq=1), sync("all_reduce", 300, 10, seq=2), waits(3)]
    traces = [
        rank_trace(3, RANKS, comm=late, groups={1: group(RANKS)}, memory=[alive(END)], **KILLED)
    ]
    traces += [rank(n, [waits()], **KILLED) for n in range(3)]
    assert said(RULE, *traces).status is Status.UNKNOWN


def test_a_run_killed_without_proof_says_where_each_rank_was() -> None:
    traces = [rank(n, [], 900, steps=[step(3, 0, 800)], **KILLED) for n in range(RANKS)]
    finding = said(RULE, *traces)
    assert finding.status is Status.UNKNOWN
    assert "the records of ranks 0-3 break off" in finding.summary
    assert {row[2] for row in finding.evidence[0].rows} == {"all_reduce 3 of world"}


# -- what ranks called instead ---------------------------------------------------------------------


def mismatch(*other: Any) -> Finding:
    traces = [rank(n, list(other) if n == 2 else [waits()], **KILLED) for n in range(RANKS)]
    assert said(RULE, *traces).summary == "Covered by mismatched-collective."
    return said(MismatchedCollective(), *traces)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (hanging("broadcast", 1000, seq=4), "operation"),
        (hanging("all_reduce", 1000, seq=4, nbytes=64), "size"),
        (hanging("all_reduce", 1000, seq=4, nbytes=4 << 20, dtype="bfloat16"), "dtype"),
        (sync("broadcast", 1000, 1, seq=4), "operation"),  # a root may leave early
    ],
)
def test_a_rank_that_came_to_something_else_is_a_mismatch(other: Any, what: str) -> None:
    finding = mismatch(other)
    assert (finding.status, finding.ranks) == (Status.FAIL, (2,))
    assert f"number 4 of world differs in {what}" in finding.summary


def test_a_rank_that_skipped_one_is_the_odd_one() -> None:
    """It calls the fifth as its fourth; the others left the broadcast and wait in the fifth."""
    left = [sync("broadcast", 1000, 1, seq=4, nbytes=16), waits(5)]
    traces = [rank(n, [waits(4)] if n == 2 else left, **KILLED) for n in range(RANKS)]
    finding = said(MismatchedCollective(), *traces)
    assert (finding.status, finding.ranks) == (Status.FAIL, (2,))


# -- the headline ----------------------------------------------------------------------------------


def headline(*traces: RankTrace) -> str:
    return diagnosis_of(summary(*traces), {}).verdict


def steps_of(last: int = 3) -> dict[str, Any]:
    return {"steps": [step(n, 100 * n, 100 * n + 100) for n in range(1, last + 1)]}


@pytest.mark.parametrize("end", [CTRL_C, EXIT, KILLED], ids=["ctrl-c", "exit", "killed"])
def test_a_hang_leads(end: dict[str, Any]) -> None:
    assert headline(*without(2, **steps_of(), **end)).startswith("Rank 2 never entered")


def test_a_mismatch_that_hung_leads() -> None:
    other = [hanging("broadcast", 1000, seq=4)]
    traces = [rank(n, other if n == 2 else [waits()], **KILLED, **steps_of()) for n in range(RANKS)]
    assert headline(*traces).startswith("Collective number 4 of world differs")


def test_a_killed_run_leads_with_that() -> None:
    killed = headline(*(rank(n, [], 900, **KILLED, **steps_of()) for n in range(RANKS)))
    assert killed.startswith("The records of ranks 0-3 break off after step 3: killed")
    assert "Last completed collective: all_reduce 3 of world on ranks 0-3." in killed
    assert "No collective in flight was recorded." in killed


def test_ctrl_c_between_steps_is_in_the_headline() -> None:
    text = headline(*(rank(n, [], **CTRL_C, **steps_of()) for n in range(RANKS)))
    assert text.startswith("Interrupted after step 3. ")
