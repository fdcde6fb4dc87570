"""What a kernel's log adds to the verdicts on a run: the pid of rank n is 100 + n.

The run begins 50 s after boot, on 2023-11-14 at 22:13:20 UTC, and takes 42 s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.hang.kernel import with_kernel_messages
from dsprof.analysis.hang.model import HangVerdict
from dsprof.analysis.hang.verdict import verdicts
from dsprof.trace.dumps.kernel_log import KernelMessage
from dsprof.trace.rank_trace import RankTrace
from tests.factories.hangs import EXIT, KILLED, RANKS, left, raised, rank, without
from tests.factories.trace import SECOND, header, summary

NOW = "Nov 14 22:14:01"
OUT_OF_MEMORY = KernelMessage("killed", 102, "python3", when=NOW)
OFF_THE_BUS = KernelMessage("device", 102, what="Xid 79", address="0000:9b:00", boot_ns=90 * SECOND)
BLOCKED = KernelMessage("blocked", 102, "python3", what="120 s", when=NOW)
IN_NO_CONTAINER = {"pid_namespace": 4026531836}


def judged(
    traces: list[RankTrace], *told: KernelMessage, **of_headers: Any
) -> tuple[HangVerdict, ...]:
    endings = summary(*traces)[Endings]
    of_headers = IN_NO_CONTAINER | of_headers
    headers = [header(number, RANKS, **of_headers) for number in range(RANKS)]
    return (*with_kernel_messages(verdicts(endings), endings, headers, told),)


def test_a_rank_that_the_kernel_killed_is_named_with_the_cause() -> None:
    [one] = judged(without(2, **KILLED), OUT_OF_MEMORY)
    assert one.ranks == (2,)
    assert one.operation is not None
    assert one.cause.kind == "out_of_memory"
    assert one.cause.text == (
        "The kernel killed rank 2 (process 102) because memory ran out "
        "(log of the kernel, Nov 14 22:14:01)."
    )
    assert one.remedy.startswith("Raise the memory limit of the job")


@pytest.mark.parametrize(("host", "confidence"), [("host", "high"), ("", "medium")])
def test_a_log_that_names_no_host_may_be_of_another_machine(host: str, confidence: str) -> None:
    [one] = judged(without(2, **KILLED), replace(OUT_OF_MEMORY, host=host), host="host")
    assert (one.cause.kind, one.confidence) == ("out_of_memory", confidence)


def test_a_verdict_that_knows_nothing_gives_way() -> None:
    traces = [rank(number, [], **KILLED) for number in range(RANKS)]
    [before] = judged(traces)
    assert before.kind == "unknown"
    [one] = judged(traces, OUT_OF_MEMORY)
    assert (one.kind, one.ranks) == ("died", (2,))
    assert one.sentence == "The kernel killed rank 2."
    assert one.cause.text.startswith("The kernel killed rank 2")


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


def test_a_rank_that_crashed_after_it_left_its_group_is_named() -> None:
    traces = [rank(number, [], **left(900)) for number in range(RANKS)]
    others = (replace(OUT_OF_MEMORY, pid=4711), OFF_THE_BUS, BLOCKED)
    assert [one.kind for one in judged(traces, *others)] == ["none"]
    [one] = judged(traces, replace(OUT_OF_MEMORY, kind="crashed", what="segfault"), *others)
    assert (one.kind, one.ranks, one.cause.kind) == ("died", (2,), "signal")


def test_what_was_blocked_explains_only_what_nothing_else_does() -> None:
    [unknown] = judged(without(2, **KILLED), BLOCKED)
    assert unknown.cause.kind == "file_system"
    raising = without(2, **raised("ValueError"))
    [one] = judged(raising, BLOCKED)
    assert one.cause.kind == "exception"
    assert one.remedy == judged(raising)[0].remedy
    first, other = judged(raising, replace(BLOCKED, pid=101))
    assert [first] == [*judged(raising)]
    assert other.ranks == (1,)


@pytest.mark.parametrize(
    ("message", "of_headers"),
    [
        (OUT_OF_MEMORY, {"pid": 102}),  # several ranks
        (OUT_OF_MEMORY, {"pid_namespace": 4026532000}),  # of a container
        (replace(OUT_OF_MEMORY, host="k8s-node-4"), {"pid_namespace": 4026532000}),
        (OUT_OF_MEMORY, {"pid_namespace": 0}),  # unknown
        (replace(OUT_OF_MEMORY, when=""), {}),  # of any time
        (replace(OUT_OF_MEMORY, pid=4711), {}),
    ],
)
def test_messages_of_others_are_of_no_rank(
    message: KernelMessage, of_headers: dict[str, Any]
) -> None:
    traces = without(2, **KILLED)
    first, other = judged(traces, message, **of_headers)
    assert first == judged(traces)[0]
    assert "which belong to no known rank" in other.sentence
    assert f"process {message.pid} (python3) was killed because memory ran out" in other.sentence
    assert other.is_healthy


def test_of_several_hosts_a_log_must_say_which_it_is_of() -> None:
    traces = without(2, **KILLED)
    endings = summary(*traces)[Endings]
    headers = [
        header(number, RANKS, host=f"node{number // 2}.example.org", **IN_NO_CONTAINER)
        for number in range(RANKS)
    ]
    before = verdicts(endings)
    first, other = with_kernel_messages(before, endings, headers, [OUT_OF_MEMORY])
    assert first == before[0]
    assert other.remedy == "Put the name of the host into the name of the file."
    there, here = (replace(OUT_OF_MEMORY, host=host) for host in ("node0", "NODE1"))
    first, other = with_kernel_messages(before, endings, headers, [there])
    assert first == before[0]
    assert "no known rank" in other.sentence
    [one] = with_kernel_messages(before, endings, headers, [here])
    assert one.cause.kind == "out_of_memory"


@pytest.mark.parametrize(
    "of_message",
    [
        {"host": "node9"},
        {"boot_ns": 5},  # the process of before had the same number
        {"boot_ns": 5000 * SECOND},
        {"when": "Nov 10 22:14:01"},
        {"when": "Nov 18 22:14:01"},
        {"when": "2023-11-14T22:14:01+02:00"},
    ],
)
def test_messages_of_other_hosts_and_times_do_not_count(of_message: dict[str, Any]) -> None:
    traces = without(2, **KILLED)
    known = {"host": "node7", "started_monotonic_ns": 1000 * SECOND}
    assert judged(traces, replace(OUT_OF_MEMORY, **of_message), **known) == judged(traces, **known)


@pytest.mark.parametrize(
    "of_message",
    [
        {"host": "NODE7.example.org"},
        {"when": "", "boot_ns": 1050 * SECOND},
        {"when": "2023-11-15T00:14:01+02:00"},
        {"when": "Tue Nov 14 14:14:01 2023"},  # of another time zone
        {"when": "1699999999.000000"},
    ],
)
def test_messages_of_the_run_count(of_message: dict[str, Any]) -> None:
    known = {"host": "node7", "started_monotonic_ns": 1000 * SECOND}
    [one] = judged(without(2, **KILLED), replace(OUT_OF_MEMORY, **of_message), **known)
    assert one.cause.kind == "out_of_memory"
