"""What a kernel's log adds to the verdicts on a run: the pid of rank n is 100 + n."""

from __future__ import annotations

from typing import Any

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.hang.kernel import with_kernel_messages
from dsprof.analysis.hang.model import HangVerdict
from dsprof.analysis.hang.verdict import verdicts
from dsprof.trace.dumps.kernel_log import KernelMessage
from dsprof.trace.rank_trace import RankTrace
from tests.factories.hangs import EXIT, KILLED, RANKS, raised, rank, without
from tests.factories.trace import header, summary

OUT_OF_MEMORY = KernelMessage("killed", 102, "python3", when="Nov  4 12:00:01")
OFF_THE_BUS = KernelMessage("device", 102, what="Xid 79", address="0000:9b:00")


def judged(
    traces: list[RankTrace], *told: KernelMessage, **of_headers: Any
) -> tuple[HangVerdict, ...]:
    endings = summary(*traces)[Endings]
    headers = [header(number, RANKS, **of_headers) for number in range(RANKS)]
    return (*with_kernel_messages(verdicts(endings), endings, headers, told),)


def test_a_rank_that_the_kernel_killed_is_named_with_the_cause() -> None:
    [one] = judged(without(2, **KILLED), OUT_OF_MEMORY)
    assert one.ranks == (2,)
    assert one.operation is not None
    assert one.cause.kind == "out_of_memory"
    assert one.cause.text == (
        "The kernel killed rank 2 (process 102) for memory (log of the kernel, Nov  4 12:00:01)."
    )
    assert one.remedy.startswith("Raise the memory limit of the job")
    assert one.confidence == "high"


def test_a_verdict_that_knows_nothing_gives_way() -> None:
    traces = [rank(number, [], **KILLED) for number in range(RANKS)]
    [before] = judged(traces)
    assert before.kind == "unknown"
    [one] = judged(traces, OUT_OF_MEMORY)
    assert (one.kind, one.ranks) == ("died", (2,))
    assert one.sentence == one.cause.text


def test_an_exception_keeps_its_place_beside_the_device_that_failed() -> None:
    traces = [rank(number, [], **(raised("RuntimeError") if number == 2 else KILLED))
              for number in range(RANKS)]  # fmt: skip
    one, *_ = judged(traces, OFF_THE_BUS)
    assert one.cause.kind == "device"
    assert one.cause.text.startswith("Rank 2 ended by RuntimeError")
    assert one.cause.text.endswith(
        "The GPU of rank 2 (0000:9b:00) failed with Xid 79 (log of the kernel)."
    )


def test_of_several_messages_the_device_is_the_root() -> None:
    for order in (1, -1):
        one, *_ = judged(without(2, **KILLED), *(OUT_OF_MEMORY, OFF_THE_BUS)[::order])
        assert one.cause.kind == "device"


def test_a_run_that_ended_in_order_has_no_problem() -> None:
    traces = [rank(number, [], **EXIT) for number in range(RANKS)]
    [one] = judged(traces, OUT_OF_MEMORY, OFF_THE_BUS)
    assert one.kind == "none"


def test_messages_of_others_are_of_no_rank() -> None:
    traces = without(2, **KILLED)
    for told, of_headers in (
        (OUT_OF_MEMORY, {"pid": 102}),  # ranks of several hosts
        (OUT_OF_MEMORY, {"pid_namespace": 4026532000}),  # of a container
        (KernelMessage("killed", 4711, "python3", when="Nov  4 12:00:01"), {}),
    ):
        first, other = judged(traces, told, **of_headers)
        assert first == judged(traces)[0]
        assert "of no rank that is known" in other.sentence
        assert "(python3) was killed for memory (Nov  4 12:00:01)" in other.sentence
        assert other.is_healthy


def test_messages_of_other_hosts_and_of_before_the_run_do_not_count() -> None:
    traces = without(2, **KILLED)
    earlier = KernelMessage("killed", 102, "python3", boot_ns=5)
    elsewhere = KernelMessage("killed", 102, "python3", host="node9")
    here = KernelMessage("killed", 102, "python3", host="NODE7", boot_ns=50)
    known = {"host": "node7.example.org", "started_monotonic_ns": 10}
    assert judged(traces, earlier, elsewhere, **known) == judged(traces, **known)
    assert judged(traces, here, **known)[0].cause.kind == "out_of_memory"
