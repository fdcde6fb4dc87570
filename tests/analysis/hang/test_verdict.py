"""Which rank others wait for, by hand-made records of four ranks; times in ms."""

from __future__ import annotations

from collections import UserDict
from collections.abc import KeysView
from typing import Any

import msgspec
import pytest

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.ending import Ending, Symptoms
from dsprof.analysis.hang.verdict import hang_of, report_of
from dsprof.analysis.hang.waits import find_hang
from dsprof.trace.dumps.hang_dump import HangDump
from dsprof.trace.dumps.state_file import StateCall
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Trailer
from tests.analysis.hang.judging import BROKEN, judged, root
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
from tests.factories.trace import failing, group, hanging, header, issued, summary, sync


def test_who_never_entered_is_named_with_the_call_and_who_waits() -> None:
    found = root(*without(2, **CTRL_C))
    assert (found.kind, found.ranks, found.waiting) == ("never_entered", (2,), (0, 1, 3))
    assert found.operation is not None
    assert (found.operation.op, found.operation.group, found.operation.seq) == (
        "all_reduce", "world", 4,
    )  # fmt: skip
    assert (found.operation.step, found.operation.bytes) == (12, 4 << 20)
    assert found.waited_ns == 41 * 10**9
    assert list(found.where) == ["2", "0"]  # the culprit, and a rank that waits for it
    assert not found.stacks  # where they called their last collective they may have left
    assert "unknown; last collective called at " in found.where["2"][0]
    assert found.cause.kind == "unknown"
    assert found.confidence == "high"


TAILS = "Up to the last half second of ranks 0-3 is missing, in which the wait may have ended."


@pytest.mark.parametrize(
    ("traces", "kind"),
    [
        (without(2, **KILLED), "never_entered"),
        (
            [rank(r, [hanging("all_gather", 1000, seq=1, group=2 + r % 2)], **KILLED,
                  groups={n: group(RANKS, id=n, key=f"{n}", label=f"{n}") for n in (1, 2, 3)})
             for r in range(RANKS)],
            "deadlock",
        ),
        ([rank(r, [waits()], **KILLED) for r in range(RANKS)], "network"),
    ],
)  # fmt: skip
def test_where_all_records_lack_their_tail_it_is_named_and_nothing_is_sure(
    traces: list[RankTrace], kind: str
) -> None:
    found = root(*traces)
    assert (found.kind, found.confidence) == (kind, "medium")
    assert found.cause.text.endswith(TAILS)


def test_a_missing_tail_leaves_a_wait_sure_that_a_whole_record_shows() -> None:
    waiting = [one for one in without(2, **CTRL_C) if one.rank != 2]
    found = root(*waiting, rank(2, [], END, **KILLED))
    assert (found.kind, found.confidence) == ("never_entered", "high")
    assert found.cause.text.endswith(" Up to the last half second of rank 2 is missing.")
    found = root(*without(2, **KILLED)[:2], *without(2, **EXIT)[2:3], *without(2, **KILLED)[3:])
    assert (found.ranks, found.confidence) == ((2,), "high")
    assert found.cause.text.endswith(" Up to the last half second of ranks 0-1, 3 is missing.")


def test_a_state_or_a_living_process_lacks_no_tail() -> None:
    alive = {f"r{r}": Symptoms(state="S") for r in range(RANKS)}
    found = root(*without(2, **KILLED), **alive)
    assert found.confidence == "high"
    assert "missing" not in found.cause.text


def test_a_mismatch_is_on_record_and_a_killed_run_without_waits_names_what_is_missing() -> None:
    other = hanging("all_gather", 1000, seq=4, step=12)
    found = root(*(rank(r, [other if r == 2 else waits()], **KILLED) for r in range(RANKS)))
    assert (found.kind, found.confidence) == ("mismatch", "high")
    found = root(*(rank(r, [], 500, **KILLED) for r in range(RANKS)))
    assert found.kind == "unknown"
    assert found.cause.text.endswith("Up to the last half second of ranks 0-3 is missing.")


def test_a_silence_shorter_than_a_heartbeat_proves_nothing() -> None:
    waiting = [rank(n, [waits()], 2300, **KILLED) for n in (0, 1, 3)]
    found = root(*waiting, rank(2, [], 1400, **KILLED))
    assert (found.kind, found.confidence) == ("never_entered", "medium")
    assert found.sentence.startswith("Rank 2 stopped in or before")


@pytest.mark.parametrize("waiting", [waits(), BROKEN[0]])
def test_a_rank_that_ended_early_had_exited(waiting: Any) -> None:
    others = [rank(n, [waiting], **KILLED) for n in (0, 1, 3)]
    found = root(*others, rank(2, [], 900, **EXIT))
    assert (found.kind, found.ranks, found.cause.kind) == ("never_entered", (2,), "exited")


def test_a_rank_that_went_on_elsewhere_diverged() -> None:
    own = group(RANKS, id=2, key="own", label="own", ranks=[2])
    elsewhere = [sync("all_reduce", 5000, 1, seq=1, group=2, site=1)]
    traces = [t for t in without(2, **KILLED) if t.rank != 2]
    groups = {1: group(RANKS), 2: own}
    found = root(*traces, rank(2, elsewhere, groups=groups, **KILLED))
    assert (found.kind, found.ranks, found.cause.kind) == ("never_entered", (2,), "diverged")
    assert "Its next call was all_reduce at train.py:40 train." in found.cause.text


def test_a_rank_that_came_when_others_had_given_up_came_late() -> None:
    timed_out = [failing("all_reduce", 1000, 10_000, seq=4)]
    late = [failing("all_reduce", 20_000, 3, seq=4)]
    traces = [
        rank(n, late if n == 2 else timed_out, **raised("RuntimeError")) for n in range(RANKS)
    ]
    found = root(*traces)
    assert (found.kind, found.ranks, found.waiting) == ("came_late", (2,), (0, 1, 3))
    assert "after ranks 0-1, 3 had given up; ranks 0-1, 3 waited" in found.sentence


def test_the_host_of_ranks_that_did_not_join_together_is_named() -> None:
    hosts = [header(n, RANKS, host="b" if n > 1 else "a") for n in range(RANKS)]
    traces = [rank(n, [] if n > 1 else [waits()], head=hosts[n], **CTRL_C) for n in range(RANKS)]
    assert root(*traces).cause.text.startswith("Ranks 2-3 are all the ranks of b. ")
    traces[1] = rank(1, [waits()], head=header(1, RANKS, host="b"), **CTRL_C)
    assert "all the ranks" not in root(*traces).cause.text
    assert "all the ranks" not in root(*without(2, 3, **CTRL_C)).cause.text


def test_who_is_still_in_a_broadcast_that_others_left_has_another_source() -> None:
    done = [sync("broadcast", 400, 10, seq=4), waits(5)]
    stuck = [hanging("broadcast", 400, seq=4)]
    found = root(*(rank(n, stuck if n < 2 else done, **KILLED) for n in range(RANKS)))
    assert (found.kind, found.ranks, found.cause.kind) == ("never_entered", (0, 1), "diverged")
    assert "still in broadcast 4 of world" in found.cause.text


def test_the_chain_leads_over_groups_to_the_root() -> None:
    """Ranks 0 and 1 wait for 2, which waits for 3 in another group."""
    groups = {1: group(RANKS), 2: pair(2, 3)}
    calls = [[waits()], [waits()], [hanging("broadcast", 900, seq=1, group=2)], []]
    found = root(*(rank(n, comm, groups=groups, **KILLED) for n, comm in enumerate(calls)))
    assert (found.kind, found.ranks) == ("never_entered", (3,))
    assert found.chain[-1] == (2, 3, "broadcast 1 of pair 2-3")
    assert (0, 3, "all_reduce 4 of world") in found.chain
    assert found.waiting == (0, 1, 2)


def test_of_a_cycle_the_rank_that_all_others_wait_for_is_the_culprit() -> None:
    """Rank 2 uses two groups in the other order."""
    everyone = list(range(RANKS))
    groups = {1: group(RANKS), 2: group(RANKS, id=2, key="b", label="b", ranks=everyone)}
    one, two = waits(site=1), hanging("broadcast", 1000, seq=1, group=2, site=1)
    traces = [rank(n, [two if n == 2 else one], groups=groups, **KILLED) for n in range(RANKS)]
    found = root(*traces)
    assert (found.kind, found.ranks, found.mismatch) == ("deadlock", (2,), "order")
    assert found.waiting == (0, 1, 3)
    assert (0, 2, "all_reduce 4 of world") in found.chain
    same = hanging("all_reduce", 1000, seq=1, group=2, site=1, nbytes=4 << 20)
    traces = [rank(n, [same if n == 2 else one], groups=groups, **KILLED) for n in range(RANKS)]
    assert root(*traces).mismatch == "group"


def test_ranks_in_a_cycle_are_named_though_most_records_are_missing() -> None:
    """Both also wait in a collective of eight ranks, of which six wrote nothing."""
    both = {n: group(2, id=n, key=f"g{n}", label=f"g{n}", ranks=[0, 1]) for n in (2, 3)}
    groups = {1: group(8, ranks=list(range(8))), **both}
    traces = [
        rank(n, [waits(1, group=2 + n), waits()], groups=groups, head=header(n, 8), **KILLED)
        for n in range(2)
    ]
    [found] = judged(*traces)
    assert (found.kind, found.ranks) == ("deadlock", (0, 1))


def test_groups_of_one_label_and_the_same_ranks_are_told_apart_by_name() -> None:
    groups = {n: group(RANKS, id=n, key=f"0/{n}", label="all ranks", name=str(n)) for n in (1, 2)}
    calls = [waits(seq=4, group=1 + (n == 2)) for n in range(RANKS)]
    found = root(*(rank(n, [call], groups=groups, **KEPT) for n, call in enumerate(calls)))
    assert found.sentence.startswith(
        "Ranks 0-3 are deadlocked. Ranks 0-1, 3 wait in all_reduce 4 of group all ranks (1) (4.00"
    )
    assert "in all_reduce 4 of group all ranks (2) (4.00" in found.sentence


def test_two_that_both_receive_first_are_deadlocked() -> None:
    calls = [
        [hanging("recv", 1000, seq=1, peer=1)],
        [hanging("recv", 1000, seq=1, peer=0)],
        [waits()],
        [waits()],
    ]
    found = root(*(rank(n, comm, **KEPT) for n, comm in enumerate(calls)))
    assert (found.kind, found.ranks) == ("deadlock", (0, 1))


def test_without_its_state_it_is_unknown_whether_a_killed_rank_waited_for_a_receive() -> None:
    """Gloo calls no send or receive complete before a wait: most that are in flight are not."""
    calls = [[hanging("recv", 1000, seq=1, peer=2, nbytes=1 << 20)], [], [], []]
    found = root(*(rank(n, comm, **KILLED) for n, comm in enumerate(calls)))
    assert (found.kind, found.operation) == ("unknown", None)
    assert (
        "Rank 0 called recv 1 of group world (1.00 MiB) last, which rank 2 did not answer: it is "
        "unknown whether it waited for that."
    ) in found.cause.text
    others = [rank(n, [waits()] if n in (1, 3) else [], **KILLED) for n in (1, 2, 3)]
    found = root(rank(0, calls[0], **KILLED), *others)
    assert found.ranks == (0, 2)
    assert "it is unknown whether it waited" in found.cause.text
    assert "Rank 0 was still alive 41.0 s after the first rank entered. Rank 0" in found.cause.text
    later = [*calls[0], sync("all_reduce", 1100, 5, seq=4)]
    found = root(*(rank(n, later if n == 0 else [], **KILLED) for n in range(RANKS)))
    assert "recv 1" not in found.cause.text


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_the_dump_of_the_watchdog_shows_what_a_rank_waited_for(is_interrupted: bool) -> None:
    call, end = hanging("recv", 1000, seq=1, peer=2), KILLED
    if is_interrupted:  # its wait did not return: the row says neither that nor an end
        call, end = issued("recv", 1000, None, seq=1, peer=2, pending_ns=1_000_000_000), CTRL_C
    shown = StateCall(call.args.id, 1, 1, "recv", "", 4, 1, 0, 12, 1, 2, is_pair=True, done_ns=0)
    state = msgspec.structs.replace(KEPT["state"], calls=[shown])
    dump = HangDump(header(), 0, 10**15, "quiet", state=state)
    traces = [rank(n, [], **KILLED) for n in (1, 2, 3)]
    found = root(rank(0, [call], **end, hang_dump=dump), *traces)
    assert (found.kind, found.ranks, found.waiting) == ("never_entered", (2,), (0,))


def test_sends_that_were_received_are_not_waits_where_another_was_not() -> None:
    """Rank 0 awaits a send to rank 1 and one to rank 2, which is in its own code."""
    sends = [hanging("send", 1000, seq=1, peer=peer) for peer in (1, 2)]
    calls = [sends, [sync("recv", 1000, 5, seq=1, peer=0), waits()], [], [waits()]]
    traces = [rank(n, comm, **KEPT) for n, comm in enumerate(calls)]
    endings = summary(*traces)[Endings]
    groups = report_of(hang_of(endings), endings).groups
    assert [(one.op, one.waiting, one.absent) for one in groups if one.op == "send"] == [
        ("send", (0,), (2,))
    ]


def test_a_send_and_its_receive_that_do_not_meet_may_differ_in_their_tags() -> None:
    calls = [
        [hanging("send", 1000, seq=1, peer=1)],
        [hanging("recv", 1000, seq=1, peer=0)],
        [waits()],
        [waits()],
    ]
    found = root(*(rank(n, comm, **KEPT) for n, comm in enumerate(calls)))
    assert (found.kind, found.ranks) == ("network", (0, 1))
    assert "the two calls differ in `tag`, the network between them broke" in found.cause.text


def test_who_waits_for_what_another_rank_has_ended_is_not_absent_from_the_next() -> None:
    """The link broke within all-reduce 4: rank 0 had all that it needs, and is in the fifth."""
    ahead = [sync("all_reduce", 1000, 5, seq=4, nbytes=4 << 20), waits(5, at=1010)]
    traces = [rank(n, [waits()] if n else ahead, **KILLED) for n in range(RANKS)]
    found = root(*traces)
    assert (found.kind, found.operation and found.operation.seq) == ("network", 4)


def test_a_rank_that_froze_within_a_collective_is_frozen() -> None:
    traces = [rank(n, [waits()], 1500 if n == 2 else END, **KILLED) for n in range(RANKS)]
    found = root(*traces)
    assert (found.kind, found.ranks) == ("frozen", (2,))
    traces = [rank(n, [waits()], **KILLED) for n in range(RANKS)]
    found = root(*traces, r1=Symptoms(state="T"))
    assert (found.kind, found.ranks, found.cause.kind) == ("frozen", (1,), "stopped")


def test_the_only_record_of_a_group_is_not_the_culprit_but_waits() -> None:
    found = root(rank(1, BROKEN, 1010, **raised("RuntimeError")))
    assert (found.kind, found.ranks, found.confidence) == ("unknown", (), "low")
    assert found.sentence.startswith("3 of 4 traces are missing")
    assert not found.is_healthy


def test_of_several_culprits_two_are_shown_with_a_rank_that_waits() -> None:
    found = root(*without(1, 2, 3, **CTRL_C))
    assert (found.ranks, found.waiting) == ((1, 2, 3), (0,))
    assert list(found.where) == ["1", "2", "0"]


def test_a_rank_that_ended_long_after_the_others_is_mentioned() -> None:
    found = root(*(rank(n, [], 16_000 if n == 2 else 1000 + n, **EXIT) for n in range(RANKS)))
    assert found.kind == "none"
    assert found.sentence.endswith("Rank 2 ended 15.0 s after the others.")


def test_a_run_that_ended_well_has_no_hang() -> None:
    assert [one.kind for one in judged(*(rank(n, []) for n in range(RANKS)))] == ["none"]


@pytest.mark.parametrize(("read", "ranks"), [((0, 1, 3), (2,)), ((3,), ())])
def test_without_all_traces_it_is_unknown_who_waits(
    read: tuple[int, ...], ranks: tuple[int, ...]
) -> None:
    found = root(*(rank(n, []) for n in read))
    assert (found.kind, found.ranks, found.confidence) == ("unknown", ranks, "low")
    assert found.is_healthy


def test_a_recording_that_ended_before_the_process_tells_nothing_of_later() -> None:
    found = root(*(rank(n, [], trailer=Trailer(reason="disable")) for n in range(RANKS)))
    assert (found.kind, found.confidence) == ("none", "medium")
    assert "while the run was recorded" in found.sentence


def test_ranks_without_a_whole_record_are_not_held_at_once() -> None:
    endings = summary(*(rank(n, [], trailer=Trailer(reason="disable")) for n in range(RANKS)))
    ranks = OnePass(endings[Endings].ranks)
    assert not find_hang(Endings(ranks, endings[Endings].groups), 1).stuck_groups
    assert not ranks.is_copied


class OnePass(UserDict[int, Ending]):
    """Ranks that notice when they are copied: only that asks for their keys."""

    is_copied = False

    def keys(self) -> KeysView[int]:
        self.is_copied = True
        return super().keys()


def test_an_environment_tells_of_no_hang() -> None:
    found = root(*(rank(n, [], trailer=Trailer(reason="dsprof env")) for n in range(RANKS)))
    assert (found.kind, found.confidence) == ("unknown", "low")


def test_roots_of_different_kinds_are_verdicts_of_their_own() -> None:
    found = judged(*without(1, 2, **KILLED), r1=Symptoms(state="T"))
    assert [(one.kind, one.ranks) for one in found] == [("frozen", (1,)), ("never_entered", (2,))]


@pytest.mark.parametrize(("until", "end"), [(900, CTRL_C), (END, EXIT)])
def test_a_rank_that_was_interrupted_or_lived_on_had_not_exited(until: float, end: Any) -> None:
    others = [rank(n, [waits()], **KILLED) for n in (0, 1, 3)]
    found = root(*others, rank(2, [], until, **end))
    assert (found.kind, found.ranks, found.cause.kind) == ("never_entered", (2,), "unknown")
    assert "exited" not in found.cause.text


def test_a_rank_without_a_trace_may_not_have_come_to_its_first_collective() -> None:
    found = root(*(trace for trace in without(2, **KEPT) if trace.rank != 2))
    assert (found.kind, found.ranks, found.confidence) == ("unknown", (2,), "low")
    assert found.cause.text.startswith("A rank records from its first collective on")
