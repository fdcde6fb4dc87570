"""Ranks of DDP whose wait, in C++, ended as they lost the connection to another; times in ms."""

from __future__ import annotations

from typing import Any

import pytest

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.hang.model import HangVerdict
from dsprof.analysis.hang.verdict import verdicts
from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.stuck_collective import StuckCollective
from dsprof.rules.quality.data_quality import DataQuality
from dsprof.trace.dumps.state_file import RankState, StateCall
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Trailer
from tests.factories.hangs import KILLED, rank, waits
from tests.factories.trace import MS, header, judged, said, summary, sync

STUCK = StuckCollective()
QUALITY = DataQuality()

LOST = 34_000
"""When the survivors lose their connections."""


def cut_off(at: int = 1000, seen_at: int = LOST + 100) -> Any:
    """All-reduce 4: no wait of Python ends it, and the error lets it call itself completed."""
    unseen = {"waits": 0, "blocked_ns": 0, "wait_ns": 0, "waited_ns": 0}
    seen = {"pending_ns": (LOST - 200) * MS, "done_ns": seen_at * MS}
    return sync("all_reduce", at, 0, seq=4, step=12, nbytes=4 << 20, **unseen, **seen)


def survivors(lost: str = "connection") -> list[RankTrace]:
    end = Trailer("exit", "RuntimeError", exception_ns=LOST * MS, lost=lost)
    return [rank(n, [cut_off()], LOST + 100, trailer=end) for n in (0, 1, 3)]


def first(*traces: RankTrace) -> HangVerdict:
    return verdicts(summary(*traces)[Endings])[0]


def test_a_rank_that_was_stopped_in_a_call_and_killed_is_the_one_awaited() -> None:
    found = first(*survivors(), rank(2, [waits(at=1005)], 1100, **KILLED))
    assert (found.kind, found.ranks, found.waiting) == ("died", (2,), (0, 1, 3))
    assert found.waited_ns == 33_000 * MS
    assert found.sentence == (
        "Every rank entered all_reduce 4 of group world (4.00 MiB, step 12), but it did not "
        "complete; ranks 0-1, 3 waited 33.0 s in it, until an exception."
    )
    assert "wrote nothing for 32.9 s while its connections stayed open" in found.cause.text


def test_a_rank_that_was_stopped_before_a_call_and_killed_never_entered_it() -> None:
    found = first(*survivors(), rank(2, [], 1600, **KILLED))
    assert (found.kind, found.ranks, found.waited_ns) == ("died", (2,), 33_000 * MS)
    assert found.sentence.startswith("Rank 2 never entered all_reduce 4 of group world")
    assert found.cause.text.startswith("The record of rank 2 breaks off earlier. It wrote")
    assert "stopped (SIGSTOP, or a debugger)" in found.cause.text


def test_a_rank_that_was_killed_at_once_was_not_stopped() -> None:
    killed = rank(2, [waits(at=LOST - 500)], LOST - 100, **KILLED)
    found = first(*survivors(), killed)
    assert (found.kind, found.ranks) == ("died", (2,))
    assert "SIGSTOP" not in found.cause.text


@pytest.mark.parametrize(
    ("lost", "seen_at"), [("", LOST + 100), ("connection", LOST - 100)], ids=["own", "seen before"]
)
def test_a_call_is_complete_unless_it_is_seen_so_after_a_connection_was_lost(
    lost: str, seen_at: int
) -> None:
    end = Trailer("exit", "RuntimeError", exception_ns=LOST * MS, lost=lost)
    traces = [rank(n, [cut_off(seen_at=seen_at)], LOST + 100, trailer=end) for n in range(4)]
    ends = summary(*traces)[Endings].ranks.values()
    assert {group.completed for end in ends for group in end.groups.values()} == {4}


def test_the_finding_is_named_after_the_call_and_sends_nobody_to_call_it() -> None:
    found = said(STUCK, *survivors(), rank(2, [waits(at=1005)], 1100, **KILLED))
    assert found.title == "A collective that every rank entered did not complete"
    assert (found.ranks, found.action.split(":")[0]) == ((2,), "Find out what killed rank 2")


def test_the_exception_of_ranks_that_lost_a_killed_one_is_a_consequence() -> None:
    killed, followed = judged(QUALITY, *survivors(), rank(2, [], 1600, **KILLED))
    assert (killed.severity, killed.ranks) == (Severity.HIGH, (2,))
    assert (followed.status, followed.ranks) == (Status.INFO, (0, 1, 3))
    assert followed.summary == (
        "Ranks 0-1, 3 ended by RuntimeError: the connection to another rank was lost. The "
        "record of rank 2 breaks off earlier."
    )
    assert "traceback" not in followed.action


def test_an_exception_of_its_own_is_no_consequence() -> None:
    *_, failed = judged(QUALITY, *survivors(""), rank(2, [], 1600, **KILLED))
    assert failed.status is Status.FAIL


def test_the_live_state_tells_the_last_step_and_what_was_in_flight() -> None:
    head = header(2, 4)
    at_ns = head.started_monotonic_ns + 1000 * MS
    call = StateCall(90, 1, 4, "all_reduce", "float32", 4 << 20, at_ns, 1, 12, 1, -1, False, 0)
    killed = rank(2, [], 900, **KILLED)
    for calls, seen, last in (([call], 3, 11), ([], 14, 13)):
        killed.state = RankState(head, 1, at_ns, seen, "backward", calls, {}, 0, {}, {})
        run = summary(*survivors(), killed)
        assert run[Endings].ranks[2].step == last
        assert run[Run].ranks[2].in_flight == "all_reduce 4 of world" * bool(calls)


def test_a_rank_that_outlived_the_connections_to_it_had_not_died() -> None:
    """It destroyed its process group, and its launcher killed it later."""
    found = first(*survivors(), rank(2, [], LOST + 3_000, **KILLED))
    assert (found.kind, found.ranks, found.waiting) == ("never_entered", (2,), (0, 1, 3))
    assert found.cause.text.startswith("The others lost the connection to it while it lived: it")


def test_a_rank_that_lost_the_store_lost_no_rank() -> None:
    """The launcher, which hosts the store, was killed while the rank waited for a key."""
    name = "torch.distributed.DistNetworkError"
    end = Trailer("exit", name, raised_at="t.py:9", lost="connection")
    found = first(*survivors(), rank(2, [], LOST - 100, trailer=end))
    assert (found.ranks, found.cause.kind) == ((2,), "store")
    assert found.cause.text.startswith("Rank 2 lost the connection to the store at t.py:9: the")
