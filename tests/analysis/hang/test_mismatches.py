"""Ranks that call something else than others, or in another order; times in ms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.hang.verdict import hang_of, report_of
from dsprof.trace.schema import Site
from tests.analysis.hang.judging import judged, root
from tests.factories.hangs import KEPT, KILLED, RANKS, raised, rank, waits
from tests.factories.trace import failing, hanging, header, issued, summary, sync


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


def test_a_call_of_another_reduce_op_that_ended_blocks_nobody() -> None:
    usual, other = (sync("all_reduce", 500, 10, seq=4, reduce_op=op) for op in ("SUM", "MAX"))
    traces = [rank(n, [other] if n == 2 else [usual, waits(5)], **KEPT) for n in range(RANKS)]
    stuck, mismatch = judged(*traces)
    assert (stuck.kind, stuck.ranks, stuck.waiting) == ("never_entered", (2,), (0, 1, 3))
    assert (mismatch.kind, mismatch.ranks, mismatch.waiting) == ("mismatch", (2,), ())
    assert mismatch.waited_ns is None


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


def test_calls_of_different_lines_are_different_branches() -> None:
    """A rank that skipped a batch is at another call, which may be as large by chance."""
    sites = {n: Site(n, "train.py", 40 + n, "train") for n in (1, 2)}
    calls = {1: waits(site=1), 2: waits(site=2, elements=7)}
    found = root(*(rank(n, [calls[1 + (n == 2)]], sites=sites, **KEPT) for n in range(RANKS)))
    assert (found.mismatch, found.ranks) == ("size", (2,))
    assert found.cause.text.startswith("The ranks took different branches")


def test_on_a_device_calls_behind_the_one_that_waits_are_not_compared() -> None:
    """They were enqueued; it is not seen whether the device has begun them."""

    def enqueued(number: int) -> list[Any]:
        return [waits(4), waits(6, 1001, elements=7 + (number == 3))] if number != 2 else []

    heads = [header(n, RANKS, device="cuda", backend="nccl") for n in range(RANKS)]
    traces = [rank(n, enqueued(n), head=heads[n], **KILLED) for n in range(RANKS)]
    [found] = judged(*traces)
    assert (found.kind, found.ranks) == ("never_entered", (2,))
