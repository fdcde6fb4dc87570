from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.hang.telling import groups_of
from dsprof.analysis.hang.verdict import hang_of, verdicts
from dsprof.analysis.summarise import summarise
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.rules.communication.stuck_collective import StuckCollective
from dsprof.rules.runner import judge
from dsprof.trace.background import mark_background
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.run import find_run
from tests.factories import flight as make
from tests.factories.hangs import KEPT, RANKS, raised, waits, without
from tests.factories.hangs import rank as rank_in_hang
from tests.factories.trace import failing, hanging, rank_trace, said, span, summary, sync

RULE = StuckCollective()

Dumps = Mapping[int, Mapping[str, Any]]


def check(folder: Path, dumps: Dumps) -> list[Finding]:
    for rank, dump in dumps.items():
        make.write(folder, rank, dump)
    return judge(summarise(find_run([folder]), RULE.meta.needs), [RULE])


def world(*calls: Sequence[Mapping[str, Any]]) -> Dumps:
    """Dumps of ranks 0, 1, ... that are all of one group."""
    groups = {"0": range(len(calls))}
    return {rank: make.document(entries, groups) for rank, entries in enumerate(calls)}


def test_a_rank_that_does_not_come_is_named_with_where_it_was_last(tmp_path: Path) -> None:
    ahead = [make.call(1, done=True), make.call(2, done=True), make.call(3, line=40)]
    behind = [make.call(1, done=True), make.call(2, done=True, line=77)]
    [finding] = check(tmp_path, world(ahead, behind, ahead, ahead))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.CRITICAL)
    assert finding.ranks == (1,)
    assert finding.summary == (
        "Rank 1 never entered all_reduce 3 of group default_pg; ranks 0, 2-3 waited in it "
        "at me/train.py:40."
    )
    assert finding.action.startswith("Print the stack of rank 1 with `py-spy dump --pid PID`.")
    assert finding.action.endswith(
        "Rank 1 called its last collective at /home/me/train.py:77 train."
    )
    groups, last = finding.evidence
    assert last.rows == ((1, 0, "/home/me/train.py:77 train"),)
    assert "/home/me/train.py:40 train" in groups.rows[0]


def test_the_last_call_is_the_latest_that_has_a_frame(tmp_path: Path) -> None:
    ahead = [make.call(seq, done=True) for seq in (1, 2, 3)] + [make.call(4)]
    calls = [make.call(2, done=True, line=77), make.call(1, done=True, line=11)]
    [finding] = check(tmp_path, world(ahead, [*calls, make.call(3, done=True)], ahead))
    assert finding.ranks == (1,)
    assert finding.action.endswith("at /home/me/train.py:77 train.")


def test_a_rank_whose_dump_is_empty_is_behind_by_its_counters(tmp_path: Path) -> None:
    waiting = make.document([make.call(8)], status={"0": (8, 7)})
    empty = make.document([], status={"0": (7, 7)})
    [finding] = check(tmp_path, {0: waiting, 1: empty})
    assert finding.ranks == (1,)
    assert finding.action.endswith("the log of rank 1.")


def test_a_rank_that_waits_for_its_peer_in_a_pipeline_may_be_its_victim(tmp_path: Path) -> None:
    groups = {"0": range(4), "1": [1, 3], "2": [0, 1]}
    first = make.call(1, done=True)
    receive = make.call(1, "recv 1<-0", group="2", is_p2p=True, p2p_seq_id=1)
    waits = make.call(2, group="1")
    dumps = {
        1: make.document([first, receive], groups),
        2: make.document([first], {"0": range(4)}),
        3: make.document([first, waits], {"0": range(4), "1": [1, 3]}),
    }
    finding = next(one for one in check(tmp_path, dumps) if one.ranks == (1,))
    assert finding.confidence == "low"
    assert finding.cause.startswith("Rank 1 itself waits in recv with rank 0")


def test_a_send_in_the_group_of_a_collective_is_no_part_of_it(tmp_path: Path) -> None:
    send = make.call(1, "send 0->1", is_p2p=True, p2p_seq_id=1)
    [finding] = check(tmp_path, world([make.call(1, done=True), send], at(1)))
    assert finding.summary == (
        "Rank 0 never entered all_reduce 2 of group default_pg; rank 1 waited in it."
    )
    assert finding.cause.startswith("Rank 0 itself waits in send with rank 1")


def test_a_receive_from_anyone_names_no_peer(tmp_path: Path) -> None:
    groups = {"0": range(4), "1": [1, 3]}
    receive = make.call(1, "recv 1<--1", group="0", is_p2p=True, p2p_seq_id=1)
    waits = make.call(2, group="1")
    dumps = {
        1: make.document([make.call(1, done=True), receive], groups),
        3: make.document([make.call(1, done=True), waits], groups),
    }
    finding = next(one for one in check(tmp_path, dumps) if one.ranks == (1,))
    assert finding.cause.startswith("Rank 1 itself waits in recv")
    assert "with rank" not in finding.cause


ZERO = "/x/deepspeed/runtime/zero"


@pytest.mark.parametrize(
    ("file", "is_told"),
    [
        (f"{ZERO}/partitioned_param_coordinator.py", True),
        (f"{ZERO}/partition_parameters.py", True),
        (f"{ZERO}/stage3.py", True),  # reductions in backward
        (f"{ZERO}/stage_1_and_2.py", False),
        ("", False),
    ],
)
def test_a_gather_of_zero3_that_a_rank_does_not_join_names_leaf_modules(
    tmp_path: Path, file: str, is_told: bool
) -> None:
    waits = [make.call(1, "_all_gather_base", line=40, zero3=file)]
    [finding] = check(tmp_path, world(waits, [make.call(0, done=True, line=7)], waits))
    assert finding.ranks == (1,)
    assert ("ZeRO-3" in finding.cause, "leaf_module" in finding.action) == (is_told, is_told)


def test_who_waits_for_another_is_not_the_culprit(tmp_path: Path) -> None:
    """Rank 0 waits for 1, which waits for 2 in another group."""
    world, left, right = {"0": [0, 1, 2]}, {"3": [0, 1]}, {"5": [1, 2]}
    done = [make.call(3, group="3", done=True), make.call(5, group="5", done=True)]
    one = make.document([done[0], make.call(4, group="3")], world | left)
    two = make.document([*done, make.call(6, group="5")], world | left | right)
    three = make.document([done[1]], world | right)
    [finding] = check(tmp_path, {0: one, 1: two, 2: three})
    assert finding.ranks == (2,)


def test_ranks_that_wait_for_each_other_are_a_circle(tmp_path: Path) -> None:
    groups = {"0": [0, 1], "5": [0, 1]}
    done = [make.call(1, done=True), make.call(1, group="5", done=True)]
    dumps = {
        0: make.document([*done, make.call(2)], groups),
        1: make.document([*done, make.call(2, group="5")], groups),
    }
    [finding] = check(tmp_path, dumps)
    assert finding.ranks == (0, 1)
    assert "different orders" in finding.cause
    assert finding.action.startswith(
        "Call the collectives of all groups in the same order on every rank"
    )


def test_a_device_that_stands_still_did_not_finish_what_others_did(tmp_path: Path) -> None:
    done = [make.call(seq, done=True) for seq in (1, 2, 3)]
    still = [make.call(1, done=True), make.call(2), make.call(3)]
    [finding] = check(tmp_path, world(done, still, done))
    assert finding.title == "Ranks did not finish collectives that others finished"
    assert finding.ranks == (1,)
    stuck, _last = finding.evidence
    assert [row[:4] for row in stuck.rows] == [("default_pg", "0", 2, "all_reduce")]


def test_a_rank_whose_device_stands_still_waits_for_nobody(tmp_path: Path) -> None:
    done = [make.call(seq, done=True) for seq in (1, 2, 3)]
    still = [make.call(1, done=True), make.call(2), make.call(3)]
    for rank, dump in world([*done, make.call(4)], [*still, make.call(4)], done).items():
        make.write(tmp_path, rank, dump)
    found = summarise(find_run([tmp_path]), RULE.meta.needs)
    [waits] = groups_of(hang_of(found[Endings], found[FlightRecorders]))
    assert (waits.unfinished, waits.absent, 1 in waits.waiting) == ((1,), (2,), False)


def test_a_root_may_be_far_ahead_of_those_it_sends_to(tmp_path: Path) -> None:
    calls = [make.call(seq, "broadcast") for seq in (1, 2, 3)]
    ended = [make.call(seq, "broadcast", done=True) for seq in (1, 2, 3)]
    [finding] = check(tmp_path, world(ended, calls))
    assert finding.status is Status.INFO


def test_what_the_counters_call_complete_is_not_in_flight(tmp_path: Path) -> None:
    dump = make.document([make.call(7), make.call(8)], status={"0": (8, 8)})
    [finding] = check(tmp_path, {0: dump, 1: dump})
    assert finding.status is Status.PASS


def test_counters_of_a_group_that_sends_are_not_of_its_collectives(tmp_path: Path) -> None:
    send = make.call(1, "send 0->1", is_p2p=True, p2p_seq_id=50)
    waiting = make.document([make.call(2), send], status={"0": (50, 50)})
    [finding] = check(tmp_path, {0: waiting, 1: make.document([make.call(1, done=True)])})
    assert (finding.status, finding.ranks) == (Status.FAIL, (1,))


@pytest.mark.parametrize("op", ["broadcast", "all_reduce"])
def test_one_that_is_not_finished_yet_is_the_moment_of_the_dump(tmp_path: Path, op: str) -> None:
    done, not_yet = [make.call(1, op, done=True)], [make.call(1, op)]
    [finding] = check(tmp_path, world(done, not_yet))
    assert finding.status is Status.INFO


def test_a_rank_without_a_dump_is_suspect_where_all_others_wait(tmp_path: Path) -> None:
    dumps = dict(world(*[[make.call(5)]] * 4))
    del dumps[2]
    [finding] = check(tmp_path, dumps)
    assert (finding.status, finding.ranks, finding.confidence) == (Status.FAIL, (2,), "low")


def test_where_most_dumps_are_missing_nobody_is_accused(tmp_path: Path) -> None:
    dumps = {rank: dump for rank, dump in world(*[[make.call(5)]] * 8).items() if rank < 2}
    [finding] = check(tmp_path, dumps)
    assert finding.status is Status.INFO


def test_what_all_have_joined_is_only_said(tmp_path: Path) -> None:
    [finding] = check(tmp_path, world([make.call(5)], [make.call(5)]))
    assert finding.status is Status.INFO
    assert finding.title == "Calls were in flight in the dumps"


def test_a_run_that_ended_well_passes(tmp_path: Path) -> None:
    calls = [make.call(seq, done=True) for seq in range(5)]
    [finding] = check(tmp_path, world(calls, calls))
    assert finding.status is Status.PASS


def test_on_gloo_who_called_less_is_behind(tmp_path: Path) -> None:
    calls = [make.call(seq, backend="gloo") for seq in (1, 2, 3)]
    dumps = {0: make.gloo(calls), 1: make.gloo(calls[:2]), 2: make.gloo(calls)}
    [finding] = check(tmp_path, dumps)
    assert (finding.status, finding.ranks, finding.confidence) == (Status.FAIL, (1,), "medium")


def test_on_gloo_equal_counts_pass(tmp_path: Path) -> None:
    calls = [make.call(seq, backend="gloo") for seq in (1, 2, 3)]
    [finding] = check(tmp_path, {0: make.gloo(calls), 1: make.gloo(calls)})
    assert finding.status is Status.PASS


def at(seq: int, since_s: int = 0, *, in_flight: int = 1) -> list[dict[str, Any]]:
    """Calls of a rank that has completed number `seq`, called `since_s` later than usual."""
    calls = [make.call(one, done=one <= seq) for one in range(seq - 3, seq + in_flight + 1)]
    return [one | {"time_created_ns": one["time_created_ns"] + since_s * 10**9} for one in calls]


@pytest.mark.parametrize("in_flight", [0, 1, 5])
def test_dumps_of_different_moments_name_the_older_one(tmp_path: Path, in_flight: int) -> None:
    dumps = world(at(140, in_flight=in_flight), at(100, in_flight=in_flight), at(140))
    [finding] = check(tmp_path, dumps)
    assert (finding.status, finding.ranks) == (Status.UNKNOWN, ())
    assert (
        f"Rank 2 had completed all_reduce 140 of group default_pg, and rank 1 had not called it. "
        f"By their newest calls, the dump of rank 1 is {41 - in_flight:.1f} s older."
        in finding.summary
    )


def test_an_older_dump_may_be_of_a_start_that_came_further(tmp_path: Path) -> None:
    [finding] = check(tmp_path, world(at(100, 86_400), at(140)))
    assert finding.status is Status.UNKNOWN
    assert "the dump of rank 1 is 24.0 h older" in finding.summary


@pytest.mark.parametrize("op", ["broadcast", "coalesced"])
def test_what_a_rank_may_leave_before_others_come_dates_no_dump(tmp_path: Path, op: str) -> None:
    ahead = [make.call(seq, op, done=True) for seq in (1, 2, 3)]
    behind = [make.call(1, op, done=True), make.call(2, op)]
    [finding] = check(tmp_path, world([*ahead, make.call(4)], behind))
    assert (finding.status, finding.ranks) == (Status.FAIL, (1,))


def test_what_ended_by_an_error_dates_no_dump(tmp_path: Path) -> None:
    """The watchdog retires a collective that timed out; it never completed."""
    [finding] = check(
        tmp_path, world([*at(2), make.call(3, retired=True), make.call(4)], at(2, in_flight=0))
    )
    assert (finding.status, finding.ranks) == (Status.FAIL, (1,))


def test_a_dump_that_is_hours_older_may_be_of_an_earlier_start(tmp_path: Path) -> None:
    [finding] = check(tmp_path, world(at(100, 86_400), at(100, in_flight=0)))
    assert (finding.status, finding.ranks, finding.confidence) == (Status.FAIL, (1,), "low")
    assert finding.cause.endswith(
        "The newest call of rank 1 is 24.0 h older than that of others: its dump may be of an "
        "earlier start."
    )


def test_traces_decide_where_dumps_are_of_different_moments(tmp_path: Path) -> None:
    for rank, dump in world(at(140), at(100)).items():
        make.write(tmp_path, rank, dump)
    dumps = summarise(find_run([tmp_path]), [FlightRecorders])[FlightRecorders]
    [verdict] = verdicts(summary(*without(3))[Endings], dumps)
    assert (verdict.kind, verdict.ranks) == ("never_entered", (3,))


def test_sends_and_receives_accuse_nobody(tmp_path: Path) -> None:
    send = make.call(1, "send 0->1", is_p2p=True, p2p_seq_id=5)
    [finding] = check(tmp_path, {0: make.document([send]), 1: make.document([])})
    assert (finding.status, finding.ranks) == (Status.INFO, ())


def test_a_report_begins_with_who_did_not_answer_a_receive() -> None:
    calls = [[hanging("recv", 1000, seq=1, peer=2)], [], [], []]
    finding = said(RULE, *(rank_in_hang(n, comm, **KEPT) for n, comm in enumerate(calls)))
    assert finding.problem == "Rank 2 did not answer recv 1 of rank 0"


def test_one_dump_alone_does_not_tell(tmp_path: Path) -> None:
    [finding] = check(tmp_path, {0: make.document([make.call(1)])})
    assert finding.status is Status.UNKNOWN


def test_without_dumps_and_traces_of_dsprof_it_does_not_apply() -> None:
    assert said(RULE, rank_trace(is_foreign=True)).status is Status.NOT_APPLICABLE


def test_who_comes_too_late_is_asked_what_it_did_before() -> None:
    calls = {
        n: failing("all_reduce", 20_000 if n == 2 else 1000, 9000, seq=4) for n in range(RANKS)
    }
    traces = [rank_in_hang(n, [call], **raised("RuntimeError")) for n, call in calls.items()]
    [finding] = judge(summary(*traces), [RULE])
    assert finding.action == (
        "Find out what rank 2 did after all_reduce 3 of world. If that has to take so long, raise "
        "the timeout of the process group or of the call."
    )


@pytest.mark.parametrize("thread", [1, 3])
def test_a_rank_may_not_come_because_a_thread_shares_the_group(thread: int) -> None:
    """Thread 3 saves a checkpoint while thread 1 trains: gloo pairs calls of the two."""

    def one(number: int) -> RankTrace:
        past = sync("all_gather", 40, 1, seq=0, step=0, phase="forward", thread=thread)
        waiting = [] if number == 2 else [waits(thread=1)]
        forward = span("forward", 0, 900, 0, thread=1)
        trace = rank_in_hang(number, [past, *waiting], spans=[forward], **KEPT)
        mark_background(trace)
        return trace

    finding = said(RULE, *map(one, range(RANKS)))
    assert finding.ranks == (2,)
    assert ("a thread beside it" in finding.cause) == (thread == 3)
    assert ("async_save as process_group. Look at" in finding.action) == (thread == 3)
