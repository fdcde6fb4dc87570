"""Which of the ranks that failed, were killed or lost others is the root; times in ms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.ending import Symptoms
from dsprof.analysis.hang.verdict import HangVerdict, verdicts
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Trailer
from tests.analysis.hang.judging import BROKEN, root
from tests.factories.hangs import END, EXIT, KEPT, KILLED, RANKS, left, raised, rank, waits, without
from tests.factories.trace import failing, header, heartbeat, issued, ns, summary


@pytest.mark.parametrize(
    ("exception", "cause"),
    [("ValueError", "exception"), ("MemoryError", "out_of_memory"),
     ("torch.OutOfMemoryError", "out_of_memory"), ("DistStoreError", "store")],
)  # fmt: skip
def test_a_rank_that_an_exception_ended_died(exception: str, cause: str) -> None:
    others = [rank(n, BROKEN, 1010, **raised("RuntimeError")) for n in (0, 1, 3)]
    found = root(*others, rank(2, [], 900, **raised(exception)))
    assert (found.kind, found.ranks, found.cause.kind) == ("died", (2,), cause)


def test_a_killed_rank_whose_peers_lose_their_connections_died() -> None:
    others = [rank(n, BROKEN, 1010, **raised("RuntimeError")) for n in (0, 1, 3)]
    found = root(*others, rank(2, [], 900, **KILLED))
    assert (found.kind, found.ranks, found.waiting) == ("died", (2,), (0, 1, 3))


def test_a_silent_rank_whose_peers_keep_their_connections_is_frozen() -> None:
    waiting = [rank(n, [waits()], **KILLED) for n in (0, 1, 3)]
    assert root(*waiting, rank(2, [], 900, **KILLED)).kind == "frozen"
    timed_out = [failing("all_reduce", 1000, 30_000, seq=4, nbytes=4 << 20)]
    others = [rank(n, timed_out, 31_010, **raised("RuntimeError")) for n in (0, 1, 3)]
    found = root(*others, rank(2, [], 900, **KILLED))
    assert (found.kind, found.ranks) == ("frozen", (2,))


@pytest.mark.parametrize(
    ("lost", "kind", "confidence"),
    [("connection", "died", "high"), ("timeout", "frozen", "high"), ("", "frozen", "medium")],
)
def test_how_the_first_wait_failed_tells_killed_from_stopped(
    lost: str, kind: str, confidence: str
) -> None:
    """Who exits after its own wait failed closes connections, too: later failures tell nothing."""

    def failed(number: int, how: str) -> RankTrace:
        at = 31_000 + number
        waiting = failing("all_reduce", 1000, 30_000, seq=4, nbytes=4 << 20)
        end = Trailer("exit", "RuntimeError", exception_ns=at * 10**6, lost=how)
        return rank(number, [waiting], at + 5, trailer=end)

    others = [failed(0, lost), failed(1, "connection"), failed(3, "connection")]
    found = root(*others, rank(2, [], 1600, **KILLED))
    assert (found.kind, found.ranks, found.confidence) == (kind, (2,), confidence)


@pytest.mark.parametrize(
    ("lost", "kind"), [("timeout", "never_entered"), ("connection", "died"), ("", "died")]
)
def test_who_lived_until_others_gave_up_was_stuck_and_then_killed(lost: str, kind: str) -> None:
    """Its last sign of life is up to a second old when the others fail and a launcher kills it."""
    waiting = failing("all_reduce", 1000, 30_000, seq=4, nbytes=4 << 20)
    end = Trailer("exit", "RuntimeError", exception_ns=31_000 * 10**6, lost=lost)
    others = [rank(n, [waiting], 31_005, trailer=end) for n in (0, 1, 3)]
    found = root(*others, rank(2, [], 30_900, **KEPT))
    assert (found.kind, found.ranks) == (kind, (2,))
    assert ("it was in its own code" in found.cause.text) is (lost == "timeout")


@pytest.mark.parametrize("lost", ["connection", "timeout"])
def test_of_equal_exceptions_the_one_that_lost_no_other_rank_is_the_cause(lost: str) -> None:
    end = Trailer("exit", "RuntimeError", exception_ns=900 * 10**6, lost=lost)
    others = [rank(n, [], 900, trailer=end) for n in (0, 1, 3)]
    found = root(*others, rank(2, [], 910, **raised("RuntimeError")))
    assert (found.kind, found.ranks, found.confidence) == ("died", (2,), "high")
    found = root(*others, rank(2, [], 910, trailer=end))
    assert (found.kind, found.ranks) == ("died", ())


def lost(how: str, exception: str = "RuntimeError", at_ns: int = 0) -> dict[str, Any]:
    return {"trailer": Trailer("exit", exception, exception_ns=at_ns, lost=how)}


@pytest.mark.parametrize("how", ["connection", "timeout"])
def test_of_ranks_that_lost_one_that_was_not_read_none_is_the_cause(how: str) -> None:
    for numbers in ((0,), (0, 1)):
        found = root(*(rank(n, [], 900 + n, **lost(how, at_ns=n + 1)) for n in numbers))
        assert (found.kind, found.ranks, found.confidence == "low") == ("died", (), False)
    assert root(rank(0, [], 900, **raised("RuntimeError"))).ranks == (0,)


def test_where_all_were_read_who_lost_a_connection_first_is_no_cause() -> None:
    others = [rank(n, [], 900, **EXIT) for n in (1, 2, 3)]
    assert root(rank(0, [], 910, **lost("connection")), *others).ranks == ()
    assert root(rank(0, [], 910, **lost("timeout")), *others).ranks == (0,)


def test_the_lost_connection_of_a_download_is_an_exception_of_its_own() -> None:
    own = lost("connection", "requests.exceptions.ConnectionError", 950 * 10**6)
    others = [rank(n, [], 960, **lost("connection", at_ns=960 * 10**6)) for n in (0, 1, 3)]
    assert root(*others, rank(2, [], 950, **own)).ranks == (2,)


def test_of_ranks_that_did_not_come_those_that_lost_others_are_no_cause() -> None:
    waiting = [rank(n, BROKEN, 3000, **lost("connection")) for n in (0, 3)]
    found = root(
        *waiting, rank(1, [], 2000, **lost("connection")), rank(2, [], 900, **raised("ValueError"))
    )
    assert (found.kind, found.ranks) == ("died", (2,))
    unread = root(*waiting, rank(1, [], 2000, **lost("connection")))
    assert "had lost the connection to another rank" in unread.cause.text
    assert unread.confidence == "low"


@pytest.mark.parametrize(("kills", "cause"), [(0, "unknown"), (1, "out_of_memory")])
def test_survivors_of_a_host_know_of_kills_for_memory(kills: int, cause: str) -> None:
    end = Trailer("exit", "RuntimeError", oom_kills=kills)
    found = root(
        *(rank(n, BROKEN, 1010, trailer=end) for n in (0, 1, 3)), rank(2, [], 900, **KILLED)
    )
    assert (found.kind, found.ranks, found.cause.kind) == ("died", (2,), cause)


def test_a_kill_for_memory_on_another_host_tells_nothing_of_this_one() -> None:
    end = Trailer("exit", "RuntimeError", oom_kills=1)
    others = [rank(n, BROKEN, 1010, trailer=end) for n in (0, 1, 3)]
    there = header(2, RANKS, host="node-b")
    assert root(*others, rank(2, [], 900, head=there, **KILLED)).cause.kind == "unknown"


@pytest.mark.parametrize("kills", [0, 2])
def test_a_rank_that_failed_may_have_lost_a_process_for_memory(kills: int) -> None:
    end = Trailer("exit", "RuntimeError", lost="connection", oom_kills=kills)
    own = Trailer("exit", "RuntimeError", oom_kills=kills)
    found = root(*(rank(n, BROKEN, 1010, trailer=end) for n in (0, 1, 3)), rank(2, [], trailer=own))
    assert (found.kind, found.ranks, found.cause.kind) == ("died", (2,), "exception")
    text = "killed 2 other processes of its cgroup: the memory limit was reached"
    assert (text in found.cause.text) == bool(kills)


def test_the_first_of_several_exceptions_is_the_root() -> None:
    traces = [rank(n, [], 900 + 10 * (n != 2), **raised("RuntimeError")) for n in (0, 2)]
    found = root(*traces, *(rank(n, []) for n in (1, 3)))
    assert (found.kind, found.ranks, found.cause.kind) == ("died", (2,), "exception")


def test_the_first_exception_in_time_is_the_root_however_long_its_process_went_on() -> None:
    def failed(at_ns: int) -> Trailer:
        return Trailer("exit", "ValueError", exception_ns=at_ns, raised_at="train.py:7 loss")

    traces = [rank(0, [], 900, trailer=failed(850_000_000)), rank(2, [], 990, trailer=failed(1000))]
    found = root(*traces, *(rank(n, []) for n in (1, 3)))
    assert found.ranks == (2,)
    assert found.cause.text == "Rank 2 ended by ValueError at train.py:7 loss."
    assert found.stacks["2"] == ("train.py:7 loss",)


def test_what_failed_after_ctrl_c_is_no_root() -> None:
    stopped = Trailer("interrupted", exception_ns=950_000_000)
    late = Trailer("exit", "RuntimeError", exception_ns=960_000_000)
    traces = [rank(n, [], 970, trailer=late if n == 0 else stopped) for n in range(RANKS)]
    assert root(*traces).kind == "none"


def test_where_every_rank_lost_the_store_none_is_the_culprit() -> None:
    kinds = ["DistNetworkError", "DistStoreError", "DistStoreError", "RuntimeError"]
    found = root(*(rank(n, [], 900 + n, **raised(kind)) for n, kind in enumerate(kinds)))
    assert (found.kind, found.ranks, found.cause.kind) == ("died", (), "store")


def test_without_all_traces_it_is_not_sure_who_failed_first() -> None:
    traces = [rank(n, [], **raised("ValueError")) for n in (0, 1)]
    found = root(*traces)
    assert (found.kind, found.ranks, found.confidence) == ("died", (0,), "medium")
    assert root(*traces[:1]).confidence == "medium"


def known_to_the_end(*traces: RankTrace) -> HangVerdict:
    """Judge killed ranks whose live state was kept."""
    endings = summary(*traces)[Endings]
    ranks = {n: replace(end, has_state=end.trailer is None) for n, end in endings.ranks.items()}
    return verdicts(Endings(ranks, endings.groups))[0]


def test_with_its_live_state_a_killed_rank_is_known_to_the_end() -> None:
    others = [rank(n, BROKEN, 1010, **raised("RuntimeError")) for n in (0, 1, 3)]
    found = known_to_the_end(*others, rank(2, [], 900, **KILLED))
    assert (found.kind, found.ranks, found.confidence) == ("died", (2,), "high")
    assert "missing" not in found.cause.text
    slowly = [failing("all_reduce", 1000, 3000, seq=4)]
    others = [rank(n, slowly, 4010, **raised("RuntimeError")) for n in (0, 1, 3)]
    assert known_to_the_end(*others, rank(2, [], 3800, **KILLED)).kind == "died"
    assert known_to_the_end(*others, rank(2, [], 6000, **KILLED)).kind == "never_entered"


def test_a_silent_rank_whose_connections_tell_nothing_died() -> None:
    """NCCL does not say whether a peer is gone; the record ends half a minute early."""
    nccl = [header(n, RANKS, backend="nccl", device="cuda") for n in range(RANKS)]
    waiting = [rank(n, [waits()], head=nccl[n], **KILLED) for n in (0, 1, 3)]
    found = root(*waiting, rank(2, [], 900, head=nccl[2], **KILLED))
    assert (found.kind, found.ranks, found.waiting) == ("died", (2,), (0, 1, 3))
    assert "breaks off earlier" in found.cause.text


def test_a_call_that_ended_before_ctrl_c_only_by_the_error_of_others_did_not_end() -> None:
    """gloo's Work calls itself complete when its peers are gone, which a poll sees after Ctrl-C."""
    ended = {"trailer": Trailer(reason="interrupted", exception_ns=int(END * 1e6) + 1)}
    cut = issued("all_reduce", 1000, END + 2, seq=4, pending_ns=int(END * 1e6))
    traces = [rank(n, [] if n == 2 else [cut], **ended) for n in range(RANKS)]
    found = root(*traces)
    assert (found.kind, found.ranks, found.waiting) == ("never_entered", (2,), (0, 1, 3))
    quick = issued("all_reduce", END - 10, END + 2, seq=4, pending_ns=int(END * 1e6))
    assert root(*(rank(n, [quick][: n != 2], **ended) for n in range(RANKS))).kind == "none"


def test_a_rank_that_waited_for_a_key_of_the_store_until_a_timeout_is_told_so() -> None:
    end = Trailer("exit", "torch.distributed.DistStoreError", raised_at="t.py:9", lost="timeout")
    found = root(*without(2, **KEPT)[:2], rank(2, [], trailer=end), rank(3, [waits()], **KEPT))
    assert (found.kind, found.ranks, found.cause.kind) == ("died", (2,), "store")
    assert found.cause.text.startswith("Rank 2 waited for the store at t.py:9, until a timeout")


def test_who_lost_the_rank_that_failed_is_said() -> None:
    lost = {"trailer": Trailer(reason="exit", exception="RuntimeError", lost="connection")}
    traces = [rank(n, [], 900, **(raised("ValueError") if n == 2 else lost)) for n in range(RANKS)]
    found = root(*traces)
    assert (found.kind, found.ranks) == ("died", (2,))
    assert found.sentence == (
        "Rank 2 ended by ValueError; ranks 0-1, 3 then lost the connection or timed out."
    )


def test_ranks_that_were_killed_when_they_had_left_their_group_ended() -> None:
    found = root(*(rank(n, [], 900, **left(800)) for n in range(RANKS)))
    assert (found.kind, found.confidence) == ("none", "high")
    assert found.sentence == (
        "No rank waits for another one. Ranks 0-3 destroyed the process group, then did not close "
        "their records."
    )
    gone = Symptoms(state="X")
    assert root(*(rank(n, [], 900, **left(800)) for n in range(RANKS)), r2=gone).kind == "none"


@pytest.mark.parametrize("until", [END, 900], ids=["and lived on", "and died"])
def test_who_left_its_group_while_others_wait_ran_fewer_iterations(until: float) -> None:
    waiting = [rank(n, [waits()], **KILLED) for n in (0, 1, 3)]
    found = root(*waiting, rank(2, [], until, **left(800)))
    assert (found.kind, found.ranks, found.cause.kind) == ("never_entered", (2,), "exited")
    assert found.cause.text.startswith("Rank 2 had already destroyed its process group")
    living = Symptoms(state="S")
    assert root(*waiting, rank(2, [], until, **left(800)), r2=living).cause.kind == "exited"
    known = root(*(rank(n, [waits()], **KEPT) for n in (0, 1, 3)), rank(2, [], until, **left(800)))
    assert (known.confidence, "missing" in known.cause.text) == ("high", False)


def test_who_left_its_group_after_others_had_waited_may_have_failed() -> None:
    found = root(*(rank(n, [waits()], **KILLED) for n in (0, 1, 3)), rank(2, [], **left(3000)))
    assert (found.kind, found.ranks, found.cause.kind) == ("never_entered", (2,), "unknown")
    assert "destroyed its process group 2.00 s after the first rank entered" in found.cause.text


def test_a_rank_that_died_is_named_where_others_had_left() -> None:
    ends = [rank(n, [], 900, **left(800)) for n in (0, 1, 3)]
    found = root(*ends, rank(2, [], 900, **KILLED))
    assert (found.kind, found.ranks) == ("unknown", (2,))
    found = root(*ends, rank(2, [], 900, **KILLED), r2=Symptoms(state="X"))
    assert (found.kind, found.ranks) == ("died", (2,))
    found = root(*ends, rank(2, [], 900, **raised("ValueError")))
    assert (found.kind, found.ranks) == ("died", (2,))


def test_ranks_that_lost_one_that_had_left_its_group_name_it() -> None:
    others = [rank(n, BROKEN, 1010, **raised("RuntimeError")) for n in (0, 1, 3)]
    found = root(*others, rank(2, [], END, **left(800)))
    assert (found.kind, found.ranks, found.cause.kind) == ("never_entered", (2,), "exited")


def test_who_left_its_group_and_was_killed_is_not_the_one_that_others_lost() -> None:
    lost = {"trailer": Trailer(reason="exit", exception="RuntimeError", lost="connection")}
    others = [rank(n, [], 1010, **lost) for n in (0, 1, 3)]
    assert root(*others, rank(2, [], 900, **left(800))).ranks == ()
    assert root(*others, rank(2, [], 900, **KILLED)).ranks == (2,)


def test_a_run_whose_ranks_left_their_group_is_neither_stalled_nor_going_on() -> None:
    silent = {"heartbeats": [heartbeat(END, oldest=END)]}
    failed = rank(1, [], 900, trailer=Trailer("exit", "ValueError", exception_ns=ns(900)))
    ended = summary(rank(0, [], END, **left(800) | silent), failed)[Endings]
    assert (ended.is_stalled(1), ended.has_failed(1)) == (False, True)
    killed = summary(rank(0, [], END, **KILLED | silent), failed)[Endings]
    assert (killed.is_stalled(1), killed.has_failed(1)) == (True, False)
