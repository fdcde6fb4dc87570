"""Ranks that destroyed their process group, and what others or their process did then; in ms."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.ending import Symptoms
from dsprof.analysis.hang.verdict import hang_of, verdicts
from dsprof.rules.evidence.hang_remedies import remedy
from dsprof.trace.schema import BucketLayout
from tests.analysis.hang.judging import root
from tests.factories.hangs import EXIT, KEPT, RANKS, left, raised, rank, waits
from tests.factories.trace import failing, hanging, header, ns, summary, sync

ALIVE, GONE = Symptoms(state="S"), Symptoms(state="X")
DDP = BucketLayout(1, 1, [4096])
STACK = 'Current thread 0x01 (most recent call first):\n  File "train.py", line 9 in main\n'


def starved(at: float, **fields: Any) -> dict[str, Any]:
    """No Python ran any more in a rank that left its group at 800, as was noticed at a time."""
    found = left(800, is_written=False)
    stacks_ns = header().started_monotonic_ns + ns(at)
    state = msgspec.structs.replace(found["state"], stacks_ns=stacks_ns, stacks=STACK)
    return found | {"state": state} | fields


@pytest.mark.parametrize(("at", "kind"), [(15_000, "frozen"), (700, "none")])
def test_a_rank_in_which_no_python_runs_after_it_left_its_group_hung(at: float, kind: str) -> None:
    ends = [left(800), starved(at), left(800), EXIT]
    traces = [rank(n, [], 900, **end) for n, end in enumerate(ends)]
    found = verdicts(summary(*traces)[Endings])[0]
    assert (found.kind, found.ranks) == (kind, (1,) if kind == "frozen" else ())
    if kind == "frozen":
        assert found.stacks == {"1": ("train.py:9 main",)}
        assert found.sentence.startswith(
            "Rank 1 destroyed the process group, then hung: no Python ran any more. No rank is "
        )
        assert found.cause.text == (
            "Rank 1 is in a call at train.py:9 main that does not release the interpreter lock."
        )


@pytest.mark.parametrize(
    ("backend", "layouts", "is_of_ddp"),
    [("gloo", [DDP], True), ("nccl", [DDP], False), ("gloo", [], False)],
)
def test_a_model_of_ddp_is_to_be_freed_first_where_it_may_have_hung(
    backend: str, layouts: list[BucketLayout], is_of_ddp: bool
) -> None:
    heads = [header(n, RANKS, backend=backend) for n in (0, 1)]
    hung = rank(0, [], 900, head=heads[0], **starved(15_000))  # killed before it wrote the layout
    endings = summary(hung, rank(1, [], 900, head=heads[1], layouts=layouts, **EXIT))[Endings]
    said = remedy(verdicts(endings)[0], hang_of(endings), endings)
    assert said.startswith("Train in a function") is is_of_ddp
    assert "Look at the call that rank 0 is in at train.py:9 main" in said


@pytest.mark.parametrize("end", [left(800), EXIT], ids=["left", "closed"])
def test_a_process_that_lives_after_training_is_named(end: Any) -> None:
    traces = [rank(n, [], 900, **(end if n == 1 else EXIT)) for n in range(RANKS)]
    found = root(*traces, r1=ALIVE, r2=GONE)
    assert (found.kind, found.ranks) == ("none", (1,))
    assert found.sentence == (
        "No rank waits for another one. Rank 1 ended training, and it still runs."
    )
    assert found.cause.text.startswith("If a process is to end, an exit handler, a destructor")
    found = root(*traces, r1=GONE)
    assert (found.ranks, found.cause.text, "still" in found.sentence) == ((), "", False)


@pytest.mark.parametrize("look", [Symptoms(), GONE], ids=["unseen", "gone"])
@pytest.mark.parametrize("end", [left(6500), EXIT], ids=["left", "closed"])
def test_who_completed_a_call_and_left_is_not_blamed_by_those_that_did_not(
    end: Any, look: Symptoms
) -> None:
    failed = [failing("all_reduce", 1000, 6000, seq=4)]
    others = [rank(n, failed, 60_000, **raised("RuntimeError")) for n in (0, 1, 3)]
    found = root(*others, rank(2, [sync("all_reduce", 1000, 5000, seq=4)], 6900, **end), r2=look)
    assert (found.kind, found.waiting) == ("network", (0, 1, 3))
    assert found.cause.text.startswith("Rank 2 completed it, others did not: the network")


def test_a_call_that_a_rank_had_left_before_did_not_complete_elsewhere() -> None:
    """A Work that an error ends, because a peer is gone, calls itself completed."""
    ended = [sync("all_reduce", 1000, 5000, seq=4)]
    others = [rank(n, ended, 7010, **raised("RuntimeError")) for n in (0, 1, 3)]
    found = root(*others, rank(2, [], 900, **left(800)))
    assert (found.kind, found.ranks, found.cause.kind) == ("never_entered", (2,), "exited")


def test_a_receive_of_what_a_rank_that_left_never_sent_did_not_complete() -> None:
    ended = [sync("recv", 1000, 5000, seq=1, peer=2, waits=0)]
    ends = {n: raised("RuntimeError") for n in (0, 1, 3)} | {2: left(800)}
    found = root(*(rank(n, ended[n:], 7000, **ends[n]) for n in range(RANKS)))
    assert (found.kind, found.ranks, found.waiting) == ("never_entered", (2,), (0,))


@pytest.mark.parametrize("end", [left(6000, is_written=False), EXIT], ids=["left", "closed"])
def test_ranks_that_left_did_not_wait_for_a_send_that_was_received(end: Any) -> None:
    """gloo calls no send complete that nothing waits for."""
    sent, got = hanging("send", 1000, seq=1, peer=1), sync("recv", 1000, 5, seq=1, peer=0)
    traces = [rank(n, comm, 7000, **end) for n, comm in enumerate(([sent], [got], [], []))]
    assert root(*traces).kind == "none"


def test_calls_in_flight_when_the_processes_ended_are_no_waits_of_those_that_are_gone_now() -> None:
    traces = [rank(n, [waits()], **EXIT) for n in range(RANKS)]
    assert root(*traces).kind == "none"
    assert root(*traces, r0=GONE, r1=GONE, r2=GONE, r3=GONE).kind == "none"


def test_a_job_whose_ranks_are_all_stopped_is_not_healthy() -> None:
    traces = [rank(n, [], 900, **KEPT) for n in range(RANKS)]
    pause = Symptoms(state="T", is_seen_now=True)
    found = root(*traces, r0=pause, r1=pause, r2=pause, r3=pause)
    assert (found.kind, found.ranks, found.cause.kind) == ("frozen", (0, 1, 2, 3), "stopped")
    assert found.sentence == "Ranks 0-3 are stopped (SIGSTOP, or a debugger)."
    assert root(*traces, r0=ALIVE, r1=ALIVE, r2=ALIVE, r3=ALIVE).kind == "none"


def test_what_is_seen_now_counts_where_a_dump_is_of_an_earlier_pause() -> None:
    pause = Symptoms(state="T", at_ns=900 * 10**6, is_seen_now=True)
    traces = [rank(n, [waits()] if n != 2 else [], **KEPT) for n in range(RANKS)]
    found = root(*traces, r2=pause)
    assert (found.kind, found.ranks, found.cause.kind) == ("frozen", (2,), "stopped")
    assert root(*traces, r2=Symptoms(state="T", at_ns=900 * 10**6)).cause.kind != "stopped"
