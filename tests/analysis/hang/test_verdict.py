"""Every kind of verdict, by hand-made records of four ranks; times in ms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dsprof.analysis.aggregates.endings import Endings, Symptoms
from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.hang.verdict import HangVerdict, hang_of, report_of, verdicts
from dsprof.analysis.summarise import summarise
from dsprof.trace.dumps.hang_dump import Connection, HangDump, ProcessState
from dsprof.trace.dumps.state_file import StateCall
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.run import find_run
from dsprof.trace.schema import Trailer
from tests import shared_data
from tests.factories import flight
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
    failing,
    group,
    hanging,
    header,
    issued,
    summary,
    sync,
)


def judged(*traces: RankTrace, **looks: Symptoms) -> list[HangVerdict]:
    """Judge a run; `looks` are what was seen of ranks: r2=Symptoms(...)."""
    endings = summary(*traces)[Endings]
    seen = {int(name[1:]): look for name, look in looks.items()}
    ranks = {
        number: replace(ending, symptoms=seen.get(number, Symptoms()))
        for number, ending in endings.ranks.items()
    }
    found = verdicts(Endings(ranks, endings.groups))
    for verdict in found:
        assert_can_be_shown(verdict)
    return found


def assert_can_be_shown(verdict: HangVerdict) -> None:
    """It is read back from JSON as it was, with a whole sentence and few stacks."""
    assert msgspec.convert(msgspec.to_builtins(verdict), HangVerdict) == verdict
    assert not re.search(r"\bNone\b|  ", f"{verdict.sentence} {verdict.cause.text}")
    assert verdict.sentence.endswith(".")
    assert len(verdict.stacks) <= 3


def root(*traces: RankTrace, **looks: Symptoms) -> HangVerdict:
    return judged(*traces, **looks)[0]


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


@pytest.mark.parametrize(
    ("look", "kind", "cause"),
    [
        (Symptoms(state="T"), "frozen", "stopped"),
        (Symptoms(state="X"), "died", "unknown"),
        (Symptoms(state="X", oom_kills=1), "died", "out_of_memory"),
        (Symptoms(state="D"), "never_entered", "file_system"),
        (Symptoms(holds_interpreter=True), "frozen", "interpreter_lock"),
        (Symptoms(waits_in="hrtimer_nanosleep"), "never_entered", "sleep"),
        (Symptoms(waits_in="futex_wait_queue"), "never_entered", "lock"),
        (Symptoms(waits_in="pipe_read"), "never_entered", "file_system"),
        (
            Symptoms(
                stack=(
                    "/usr/lib/python3/queue.py:171 get",
                    "/x/torch/utils/data/dataloader.py:1251 _try_get_data",
                )
            ),
            "never_entered",
            "data_loader",
        ),
        (Symptoms(stack=("/usr/lib/python3/threading.py:9 wait",)), "never_entered", "lock"),
        (
            Symptoms(
                stack=(
                    "/usr/lib/python3/selectors.py:415 select",
                    "/usr/lib/python3/subprocess.py:2108 _communicate",
                )
            ),
            "never_entered",
            "child_process",
        ),
    ],
)
def test_a_look_at_the_process_tells_why(look: Symptoms, kind: str, cause: str) -> None:
    found = root(*without(2, **KILLED), r2=look)
    assert (found.kind, found.ranks, found.cause.kind) == (kind, (2,), cause)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("    time.sleep(100)", "sleep"),
        ("    lock.acquire()", "lock"),
        ("    os.waitpid(pid, 0)", "child_process"),
        ("    with self.lock:", "lock"),
        ('    with open(path, "rb") as file:', "file_system"),
        ("    file.read()", "file_system"),
        ("    total += 1", "unknown"),
    ],
)
def test_the_line_of_source_tells_what_is_called_in_c(
    tmp_path: Path, line: str, cause: str
) -> None:
    source = tmp_path / "train.py"
    source.write_text(f"def train():\n{line}\n")
    found = root(*without(2, **KILLED), r2=Symptoms(stack=(f"{source}:2 train",)))
    assert found.cause.kind == cause
    assert found.stacks["2"] == (f"{source}:2 train",)
    assert found.kind == "never_entered"


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


BROKEN = [failing("all_reduce", 1000, 5, seq=4, nbytes=4 << 20)]


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


def test_a_process_that_is_gone_and_wrote_its_last_line_had_exited() -> None:
    others = [rank(n, [waits()], **KILLED) for n in (0, 1, 3)]
    found = root(*others, rank(2, [], 900, **EXIT), r2=Symptoms(state="X"))
    assert (found.kind, found.cause.kind) == ("never_entered", "exited")


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


@pytest.mark.parametrize(
    ("other", "mismatch"),
    [
        (hanging("broadcast", 1000, seq=4), "op"),
        (hanging("all_reduce", 1000, seq=4, nbytes=64), "size"),
        (hanging("all_reduce", 1000, seq=4, nbytes=4 << 20, dtype="bfloat16"), "dtype"),
        (
            hanging("all_reduce", 1000, seq=4, nbytes=4 << 20, reduce_op="MAX"),
            "reduce_op",
        ),
        (hanging("all_reduce", 1000, seq=4, nbytes=4 << 20, peer=2), "root"),
    ],
)
def test_a_call_that_differs_is_a_mismatch(other: Any, mismatch: str) -> None:
    usual = waits(reduce_op="SUM", peer=0 if mismatch == "root" else -1)
    traces = [rank(n, [other if n == 2 else usual], **KILLED) for n in range(RANKS)]
    found = root(*traces)
    assert (found.kind, found.mismatch, found.ranks) == ("mismatch", mismatch, (2,))
    assert (found.waiting, found.cause.kind) == ((0, 1, 3), "diverged")
    assert found.operation is not None
    assert found.operation.op == "all_reduce"  # of those that wait
    assert found.cause.text.endswith(
        "The last call in common is all_reduce 3 of world, called at train.py:40 train."
    )


def test_those_that_wait_wait_in_their_own_call_also_if_another_was_first() -> None:
    first = hanging("broadcast", 900, seq=4)
    traces = [rank(n, [first if n == 2 else waits()], **KILLED) for n in range(RANKS)]
    endings = summary(*traces)[Endings]
    (group,) = report_of(hang_of(endings), endings).groups
    assert (group.op, group.waiting, group.different) == ("all_reduce", (0, 1, 3), (2,))


def test_the_host_of_ranks_that_did_not_join_together_is_named() -> None:
    hosts = [header(n, RANKS, host="b" if n > 1 else "a") for n in range(RANKS)]
    traces = [rank(n, [] if n > 1 else [waits()], head=hosts[n], **CTRL_C) for n in range(RANKS)]
    assert root(*traces).cause.text.startswith("Ranks 2-3 are all the ranks of b. ")
    traces[1] = rank(1, [waits()], head=header(1, RANKS, host="b"), **CTRL_C)
    assert "all the ranks" not in root(*traces).cause.text
    assert "all the ranks" not in root(*without(2, 3, **CTRL_C)).cause.text


@pytest.mark.parametrize("op", ["all_gather_into_tensor", "reduce_scatter_tensor"])
def test_operations_on_one_tensor_have_one_size(op: str) -> None:
    traces = [
        rank(n, [hanging(op, 1000, seq=4, nbytes=64 << (n == 2))], **KILLED) for n in range(RANKS)
    ]
    found = root(*traces)
    assert (found.kind, found.mismatch, found.confidence) == ("mismatch", "size", "high")


@pytest.mark.parametrize(
    ("sizes", "kind"), [((8, 8, 16, 8), "mismatch"), ((8, 16, 24, 32), "network")]
)
def test_of_sizes_that_may_differ_one_among_equal_ones_is_suspect(
    sizes: Sequence[int], kind: str
) -> None:
    calls = [hanging("all_to_all_single", 1000, seq=4, nbytes=nbytes) for nbytes in sizes]
    found = root(*(rank(n, [call], **KILLED) for n, call in enumerate(calls)))
    assert (found.kind, found.confidence) == (kind, "medium")


def test_two_calls_in_the_other_order_are_an_order() -> None:
    calls = [hanging("all_reduce", 1000, seq=4), hanging("broadcast", 1001, seq=5)]
    other = [hanging("broadcast", 1000, seq=4), hanging("all_reduce", 1001, seq=5)]
    traces = [rank(n, other if n == 2 else calls, **KILLED) for n in range(RANKS)]
    found = root(*traces)
    assert (found.kind, found.mismatch, found.ranks) == ("mismatch", "order", (2,))


def test_a_size_that_differs_ends_what_is_in_flight_behind_it() -> None:
    """The calls behind it call themselves completed: an error ended them."""

    def calls(*elements: int) -> list[Any]:
        behind = issued(
            "all_reduce", 1002, 1040, wait=1030, waited=1040, seq=5, elements=elements[1]
        )
        return [failing("all_reduce", 1000, 20, seq=4, elements=elements[0]), behind]

    others = [rank(n, calls(66, 67), 1050, **raised("RuntimeError")) for n in (0, 1, 3)]
    odd = rank(2, calls(67, 67)[:1], 1050, **raised("RuntimeError"))
    found = root(*others, odd)
    assert (found.kind, found.mismatch, found.ranks) == ("mismatch", "size", (2,))


def test_a_dtype_that_differs_ends_the_processes_of_others() -> None:
    """gloo ends a process that gets more than it expects; the one that differs then fails."""
    died = [rank(n, [hanging("all_reduce", 1000, seq=4)], 1001, **KILLED) for n in (0, 1)]
    odd = rank(2, [sync("all_reduce", 1000, 2, seq=4, dtype="float64")], 1020, **raised("X"))
    found = root(*died, odd)
    assert (found.kind, found.mismatch, found.ranks) == ("mismatch", "dtype", (2,))


def test_who_is_still_in_a_broadcast_that_others_left_has_another_source() -> None:
    done = [sync("broadcast", 400, 10, seq=4), waits(5)]
    stuck = [hanging("broadcast", 400, seq=4)]
    found = root(*(rank(n, stuck if n < 2 else done, **KILLED) for n in range(RANKS)))
    assert (found.kind, found.ranks, found.cause.kind) == ("never_entered", (0, 1), "diverged")
    assert "still in broadcast 4 of world" in found.cause.text


def test_a_call_of_torch_distributed_that_is_not_recorded_is_no_lock() -> None:
    torch = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
    stack = (f"{torch}:5435 monitored_barrier", "train.py:7 main")
    look = Symptoms(stack=stack, waits_in="futex_do_wait")
    found = root(*without(2, **KILLED), r2=look)
    assert found.cause.kind == "diverged"
    assert "is in monitored_barrier of torch.distributed at train.py:7 main." in found.cause.text


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


def test_what_all_entered_and_none_left_is_the_network() -> None:
    traces = [rank(n, [waits()], **KILLED) for n in range(RANKS)]
    found = root(*traces)
    assert (found.kind, found.ranks, found.confidence) == ("network", (0, 1, 2, 3), "medium")


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


def test_where_bytes_stay_unsent_the_network_is_broken() -> None:
    def connected(*peers: int, unsent: Sequence[int] = ()) -> Symptoms:
        """Ports are 10 * own rank + peer's rank, seen from either end."""
        me = ({*range(RANKS)} - {*peers}).pop()
        ends = [Connection(10 * me + n, 10 * n + me, 176 * (n in unsent), 0) for n in peers]
        return Symptoms(at_ns=10**12, connections=tuple(ends))

    looks = {"r0": connected(1, 2, 3, unsent=[2]), "r1": connected(0, 2, 3),
             "r2": connected(0, 1, 3, unsent=[3]), "r3": connected(0, 1, 2)}  # fmt: skip
    found = root(*(rank(n, [waits()], **CTRL_C) for n in range(RANKS)), **looks)
    assert (found.kind, found.ranks) == ("network", (2,))
    assert "unsent between ranks 0 and 2; 2 and 3:" in found.cause.text


def test_bytes_that_a_rank_does_not_read_are_not_the_networks() -> None:
    looks = {
        "r0": Symptoms(at_ns=10**12, connections=(Connection(1, 2, 4096, 0),)),
        "r1": Symptoms(at_ns=10**12, connections=(Connection(2, 1, 0, 4096),)),
    }
    found = root(*(rank(n, [waits()], **CTRL_C) for n in range(RANKS)), **looks)
    assert (found.kind, found.ranks) == ("network", (0, 1, 2, 3))


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


def test_a_rank_without_a_file_is_unknown() -> None:
    found = root(*(trace for trace in without(2, **KILLED) if trace.rank != 2))
    assert (found.kind, found.ranks, found.confidence) == ("unknown", (2,), "low")


def test_the_only_record_of_a_group_is_not_the_culprit_but_waits() -> None:
    found = root(rank(1, BROKEN, 1010, **raised("RuntimeError")))
    assert (found.kind, found.ranks, found.confidence) == ("unknown", (), "low")
    assert found.sentence.startswith("3 of 4 traces are missing")
    assert not found.is_healthy


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


@pytest.mark.parametrize(("state", "is_said"), [("", True), ("S", False)])
def test_who_was_seen_alive_at_the_end_of_its_record_was_not_killed(
    state: str, is_said: bool
) -> None:
    found = root(*without(2, **KILLED), r2=Symptoms(state=state, at_ns=10**15))
    assert ("breaks off: killed, crashed, or still running" in found.cause.text) is is_said


def at_store(host: str = "") -> Symptoms:
    return Symptoms(stack=("train.py:9 main",), store_call="new_group", lost_store=host)


def test_a_store_that_does_not_answer_is_the_cause() -> None:
    looks = {f"r{n}": at_store("node-a:29500") for n in range(RANKS)}
    found = root(*(rank(n, [], **KILLED) for n in range(RANKS)), **looks)
    assert (found.kind, found.ranks, found.cause.kind) == ("network", (), "store")
    assert "node-a:29500, which does not answer" in found.sentence


def test_who_creates_no_group_is_named() -> None:
    looks = {f"r{n}": at_store() for n in (0, 1, 3)} | {
        "r2": Symptoms(waits_in="hrtimer_nanosleep")
    }
    found = root(*(rank(n, [], **KILLED) for n in range(RANKS)), **looks)
    assert (found.kind, found.ranks, found.waiting) == ("never_entered", (2,), (0, 1, 3))
    assert found.cause.kind == "sleep"


def test_what_failed_after_ctrl_c_is_no_root() -> None:
    stopped = Trailer("interrupted", exception_ns=950_000_000)
    late = Trailer("exit", "RuntimeError", exception_ns=960_000_000)
    traces = [rank(n, [], 970, trailer=late if n == 0 else stopped) for n in range(RANKS)]
    assert root(*traces).kind == "none"


def test_of_several_culprits_two_are_shown_with_a_rank_that_waits() -> None:
    found = root(*without(1, 2, 3, **CTRL_C))
    assert (found.ranks, found.waiting) == ((1, 2, 3), (0,))
    assert list(found.where) == ["1", "2", "0"]


def test_a_rank_that_ended_long_after_the_others_is_mentioned() -> None:
    found = root(*(rank(n, [], 16_000 if n == 2 else 1000 + n, **EXIT) for n in range(RANKS)))
    assert found.kind == "none"
    assert found.sentence.endswith("Rank 2 ended 15.0 s after the others.")


def test_where_every_rank_lost_the_store_none_is_the_culprit() -> None:
    kinds = ["DistNetworkError", "DistStoreError", "DistStoreError", "RuntimeError"]
    found = root(*(rank(n, [], 900 + n, **raised(kind)) for n, kind in enumerate(kinds)))
    assert (found.kind, found.ranks, found.cause.kind) == ("died", (), "store")


def test_a_run_that_ended_well_has_no_hang() -> None:
    assert [one.kind for one in judged(*(rank(n, []) for n in range(RANKS)))] == ["none"]


@pytest.mark.parametrize(("read", "ranks"), [((0, 1, 3), (2,)), ((3,), ())])
def test_without_all_traces_it_is_unknown_who_waits(
    read: tuple[int, ...], ranks: tuple[int, ...]
) -> None:
    found = root(*(rank(n, []) for n in read))
    assert (found.kind, found.ranks, found.confidence) == ("unknown", ranks, "low")
    assert found.is_healthy


def test_without_all_traces_it_is_not_sure_who_failed_first() -> None:
    traces = [rank(n, [], **raised("ValueError")) for n in (0, 1)]
    found = root(*traces)
    assert (found.kind, found.ranks, found.confidence) == ("died", (0,), "medium")
    assert root(*traces[:1]).confidence == "medium"


def test_a_recording_that_ended_before_the_process_tells_nothing_of_later() -> None:
    found = root(*(rank(n, [], trailer=Trailer(reason="disable")) for n in range(RANKS)))
    assert (found.kind, found.confidence) == ("none", "medium")
    assert "while the run was recorded" in found.sentence


def test_an_environment_tells_of_no_hang() -> None:
    found = root(*(rank(n, [], trailer=Trailer(reason="dsprof env")) for n in range(RANKS)))
    assert (found.kind, found.confidence) == ("unknown", "low")


def test_ranks_killed_without_a_wait_are_unknown() -> None:
    assert root(*(rank(n, [], 900, **KILLED) for n in range(RANKS))).kind == "unknown"


def test_roots_of_different_kinds_are_verdicts_of_their_own() -> None:
    found = judged(*without(1, 2, **KILLED), r1=Symptoms(state="T"))
    assert [(one.kind, one.ranks) for one in found] == [("frozen", (1,)), ("never_entered", (2,))]


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


ALIVE = Symptoms(state="S")


def test_a_living_process_that_writes_nothing_runs_no_python() -> None:
    waiting = [rank(n, [waits()], **KILLED) for n in (0, 1, 3)]
    look = Symptoms(state="S", waits_in="hrtimer_nanosleep")
    found = root(*waiting, rank(2, [], 900, **KILLED), r2=look)
    assert (found.kind, found.cause.kind) == ("frozen", "interpreter_lock")


def test_a_living_rank_that_goes_on_elsewhere_is_slow() -> None:
    own = group(RANKS, id=2, key="own", label="own", ranks=[2])
    lately = [sync("all_reduce", END - 100, 1, seq=1, group=2)]
    traces = [trace for trace in without(2, **KILLED) if trace.rank != 2]
    two = rank(2, lately, groups={1: group(RANKS), 2: own}, **KILLED)
    assert root(*traces, two, r2=ALIVE).kind == "slow"
    assert root(*traces, two).kind == "never_entered"


def test_a_run_whose_processes_live_and_wait_for_nothing_has_no_hang() -> None:
    traces = [rank(n, [], 900, **KILLED) for n in range(RANKS)]
    assert root(*traces, r0=ALIVE, r1=ALIVE, r2=ALIVE, r3=ALIVE).kind == "none"


def noticed(at_s: float, **fields: Any) -> HangDump:
    given: dict[str, Any] = {"process": ProcessState(state="S", waits_in="futex_wait_queue")}
    return HangDump(
        header=header(2, RANKS),
        noticed_epoch_ns=0,
        noticed_ns=round((50 + at_s) * 10**9),
        reason="",
        **(given | fields),
    )


@pytest.mark.parametrize(
    ("dump", "kind", "cause"),
    [
        (noticed(20), "never_entered", "lock"),
        (noticed(0.5), "never_entered", "unknown"),  # of a pause before
        (noticed(20, holds_interpreter=True), "frozen", "interpreter_lock"),
        (noticed(20, process=ProcessState(state="T")), "frozen", "stopped"),
        (noticed(20, process=ProcessState(state="X")), "died", "unknown"),
        (noticed(20, process=ProcessState(state="X", oom_kills=1)), "died", "out_of_memory"),
        (noticed(20, process=ProcessState(state="S", oom_kills=1)), "never_entered", "unknown"),
    ],
)
def test_what_a_rank_wrote_of_itself_tells_why(dump: HangDump, kind: str, cause: str) -> None:
    traces = without(2, **KILLED)
    traces[2].hang_dump = dump
    found = verdicts(summary(*traces)[Endings])[0]
    assert (found.kind, found.cause.kind) == (kind, cause)


def dumped(folder: Path) -> list[HangVerdict]:
    run = summarise(find_run([folder]), [FlightRecorders, Endings])
    return verdicts(run[Endings], run[FlightRecorders])


def test_dumps_name_the_rank_that_did_not_come(tmp_path: Path) -> None:
    for number in range(RANKS):
        entries = [flight.call(1, done=True), *([flight.call(2)] if number != 2 else [])]
        flight.write(tmp_path, number, flight.document(entries, {"0": range(RANKS)}))
    [found] = dumped(tmp_path)
    assert (found.kind, found.ranks, found.waiting) == ("never_entered", (2,), (0, 1, 3))


def test_dumps_name_the_rank_whose_device_has_not_started_what_others_are_in(
    tmp_path: Path,
) -> None:
    for number in range(RANKS):
        state = "scheduled" if number == 2 else "started"
        entries = [flight.call(1, done=True), flight.call(2, state=state)]
        flight.write(tmp_path, number, flight.document(entries, {"0": range(RANKS)}))
    [found] = dumped(tmp_path)
    assert (found.kind, found.ranks, found.confidence) == ("unknown", (2,), "low")
    assert found.sentence.endswith(
        "every rank with a dump had joined it, but the device of rank 2 had not started it."
    )


def test_sends_in_flight_in_dumps_are_named(tmp_path: Path) -> None:
    send = flight.call(2, "send 0->1", is_p2p=True, p2p_seq_id=1)
    for number, entries in enumerate(
        [[flight.call(1, done=True), send], [flight.call(1, done=True)]]
    ):
        flight.write(tmp_path, number, flight.document(entries))
    [found] = dumped(tmp_path)
    assert (found.kind, found.ranks) == ("unknown", ())
    assert found.sentence == (
        "Only sends and receives were in flight in the dumps: rank 0 in send with rank 1."
    )


def test_one_dump_of_several_shows_nobodys_wait(tmp_path: Path) -> None:
    flight.write(tmp_path, 1, flight.document([flight.call(1)], {"0": range(RANKS)}))
    [found] = dumped(tmp_path)
    assert (found.kind, found.ranks) == ("unknown", ())
    assert found.sentence == "Unknown: only rank 1 was dumped."


def test_dumps_of_one_group_in_flight_speak_of_no_others(tmp_path: Path) -> None:
    for number in range(RANKS):
        entries = [flight.call(1, done=True), flight.call(2)]
        flight.write(tmp_path, number, flight.document(entries, {"0": range(RANKS)}))
    [found] = dumped(tmp_path)
    assert found.sentence.endswith(" was in flight; every rank with a dump had joined it.")
    assert "more group" not in found.sentence


@pytest.mark.parametrize(
    ("name", "injected", "kind"),
    [("nvrx_gpu_error_1st", (12, 14), "frozen"), ("nvrx_lock_gil_2nd", (10, 15), "never_entered")],
)
def test_real_dumps_name_the_ranks_in_which_faults_were_injected(
    name: str, injected: tuple[int, ...], kind: str
) -> None:
    [found] = dumped(shared_data.folder("flight_recorder") / name)
    assert (found.ranks, found.kind) == (injected, kind)


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


def test_a_call_of_another_reduce_op_that_ended_blocks_nobody() -> None:
    usual, other = (sync("all_reduce", 500, 10, seq=4, reduce_op=op) for op in ("SUM", "MAX"))
    traces = [rank(n, [other] if n == 2 else [usual, waits(5)], **KEPT) for n in range(RANKS)]
    stuck, mismatch = judged(*traces)
    assert (stuck.kind, stuck.ranks, stuck.waiting) == ("never_entered", (2,), (0, 1, 3))
    assert (mismatch.kind, mismatch.ranks, mismatch.waiting) == ("mismatch", (2,), ())
    assert mismatch.waited_ns is None


@pytest.mark.parametrize(("until", "end"), [(900, CTRL_C), (END, EXIT)])
def test_a_rank_that_was_interrupted_or_lived_on_had_not_exited(until: float, end: Any) -> None:
    others = [rank(n, [waits()], **KILLED) for n in (0, 1, 3)]
    found = root(*others, rank(2, [], until, **end))
    assert (found.kind, found.ranks, found.cause.kind) == ("never_entered", (2,), "unknown")
    assert "exited" not in found.cause.text


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"dtype": "float64"}, "The ranks passed tensors of different dtypes: autocast"),
        ({"elements": 7}, "The ranks passed tensors of different sizes: batches"),
        ({"reduce_op": "max"}, "The ranks took different branches: a condition on the rank"),
        ({"peer": 1}, "The ranks passed different `src` or `dst`: a local rank"),
    ],
)
def test_the_cause_of_a_mismatch_is_of_its_kind(fields: dict[str, Any], cause: str) -> None:
    usual = {"reduce_op": "sum", "peer": 0}
    calls = [waits(**usual), waits(**(usual | fields))]
    found = root(*(rank(n, [calls[n == 2]], **KEPT) for n in range(RANKS)))
    assert (found.kind, found.ranks) == ("mismatch", (2,))
    assert found.cause.text.startswith(cause)


def test_who_lost_the_rank_that_failed_is_said() -> None:
    lost = {"trailer": Trailer(reason="exit", exception="RuntimeError", lost="connection")}
    traces = [rank(n, [], 900, **(raised("ValueError") if n == 2 else lost)) for n in range(RANKS)]
    found = root(*traces)
    assert (found.kind, found.ranks) == ("died", (2,))
    assert found.sentence == (
        "Rank 2 ended by ValueError; ranks 0-1, 3 then lost the connection or timed out."
    )


def test_a_rank_without_a_trace_may_not_have_come_to_its_first_collective() -> None:
    found = root(*(trace for trace in without(2, **KEPT) if trace.rank != 2))
    assert (found.kind, found.ranks, found.confidence) == ("unknown", (2,), "low")
    assert found.cause.text.startswith("A rank records from its first collective on")
