from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dsprof.analysis.summarise import summarise
from dsprof.diagnosis.sections.hang import hang
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.rules.communication.mismatched_collective import MismatchedCollective
from dsprof.rules.runner import judge
from dsprof.trace.background import mark_background
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.run import find_run
from tests.factories import flight as make
from tests.factories import hangs
from tests.factories.trace import judged_summary, rank_trace, said, span, summary, sync

RULE = MismatchedCollective()


def check(folder: Path, *calls: Mapping[str, Any]) -> Finding:
    """Judge ranks that each made one call, of the same number."""
    for rank, call in enumerate(calls):
        make.write(folder, rank, make.document([call], {"0": range(len(calls))}))
    [finding] = judge(summarise(find_run([folder]), RULE.meta.needs), [RULE])
    return finding


@pytest.mark.parametrize(
    ("odd", "what"),
    [
        ({"op": "_all_gather_base"}, "operation"),
        ({"elements": 2048}, "size"),
        ({"dtype": "BFloat16"}, "dtype"),
    ],
)
def test_the_rank_that_differs_from_most_is_named(
    tmp_path: Path, odd: dict[str, Any], what: str
) -> None:
    usual = make.call(7, line=10)
    finding = check(tmp_path, usual, usual, make.call(7, line=20, **odd), usual)
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.CRITICAL)
    assert finding.ranks == (2,)
    assert f"number 7 of default_pg differs in {what}" in finding.summary
    assert [row[2] for row in finding.evidence[0].rows] == [
        "/home/me/train.py:10 train",
        "/home/me/train.py:20 train",
    ]


def test_gathers_of_zero3_that_differ_name_leaf_modules(tmp_path: Path) -> None:
    zero3 = "/x/deepspeed/runtime/zero/partition_parameters.py"
    usual = make.call(7, "_all_gather_base", line=10, zero3=zero3)
    finding = check(tmp_path, usual, usual | {"input_sizes": [[9]]}, usual)
    assert ("ZeRO-3" in finding.cause, "leaf_module" in finding.action) == (True, True)


def test_of_two_that_differ_neither_is_accused(tmp_path: Path) -> None:
    finding = check(tmp_path, make.call(1), make.call(1, "broadcast"))
    assert (finding.status, finding.ranks) == (Status.FAIL, ())
    assert "ZeRO-3" not in finding.cause + finding.action


@pytest.mark.parametrize("op", ["all_to_all", "gather", "coalesced"])
def test_operations_that_may_be_uneven_pass(tmp_path: Path, op: str) -> None:
    assert check(tmp_path, make.call(1, op), make.call(1, op, elements=9)).status is Status.PASS


def test_gathering_shapes_of_the_same_size_passes(tmp_path: Path) -> None:
    two = make.call(1, input_sizes=[[32, 32]], output_sizes=[[32, 32]])
    assert check(tmp_path, make.call(1), two).status is Status.PASS


def test_the_same_calls_pass(tmp_path: Path) -> None:
    assert check(tmp_path, make.call(1), make.call(1)).status is Status.PASS


def test_one_dump_alone_does_not_tell(tmp_path: Path) -> None:
    assert check(tmp_path, make.call(1)).status is Status.UNKNOWN


def test_without_dumps_it_does_not_apply() -> None:
    assert said(RULE, rank_trace()).status is Status.NOT_APPLICABLE


def called(rank: int, *ops: str, nbytes: int = 1024, world: int = 4) -> RankTrace:
    calls = [sync(op, 10 * n, 9, seq=n, nbytes=nbytes, step=0) for n, op in enumerate(ops)]
    return rank_trace(rank, world, comm=calls)


USUAL = ["all_reduce"] * 20


def test_in_traces_the_rank_that_calls_another_operation_is_named() -> None:
    odd = [*USUAL[:5], "reduce_scatter_tensor", *USUAL[6:]]
    finding = said(RULE, *(called(n, *(odd if n == 2 else USUAL)) for n in range(4)))
    assert (finding.status, finding.ranks) == (Status.FAIL, (2,))
    assert "number 5 of world differs in operation" in finding.summary


@pytest.mark.parametrize("thread", [1, 3])
def test_a_thread_beside_the_training_that_shares_the_group_is_the_cause(thread: int) -> None:
    """Thread 3 saves a checkpoint while thread 1 is in forward; each rank waits in another one."""

    def one(number: int) -> RankTrace:
        last = hangs.waits(dtype="int64", thread=thread) if number else hangs.waits(thread=1)
        past = sync("all_gather", 40, 1, seq=0, step=0, phase="forward", thread=thread)
        forward = span("forward", 0, 900, 0, thread=1)
        trace = hangs.rank(number, [past, last], spans=[forward])
        mark_background(trace)
        return trace

    run = summary(*map(one, range(4)))
    (finding,) = judged_summary(RULE, run)
    assert finding.status is Status.FAIL
    assert "differs in dtype" in finding.summary
    assert ("a thread beside it" in finding.cause) == (thread == 3)
    assert ("async_save" in finding.action) == (thread == 3)
    assert ("PowerSGD" in finding.cause) == ("`bucket_cap_mb`" in finding.action) == (thread == 3)
    verdict = hang(run, {}).verdicts[0]
    assert (verdict.kind, verdict.cause.text) == ("mismatch", finding.cause)


@pytest.mark.parametrize(("thread", "past_ms"), [(3, 1), (1, 1), (3, 0)])
def test_threads_that_are_in_calls_of_a_group_at_once_share_it(thread: int, past_ms: int) -> None:
    """Without phases, as where a thread reduces metrics while a checkpoint is saved, or neither."""

    def one(number: int) -> RankTrace:
        during = sync("all_gather", 40, past_ms, seq=0, thread=1)
        past = sync("all_reduce", 40.5, 1, seq=1, thread=thread)
        waits = hangs.waits(dtype="int64" if number else "float32", thread=1)
        return hangs.rank(number, [during, past, waits])

    (finding,) = judged_summary(RULE, summary(*map(one, range(4))))
    assert finding.status is Status.FAIL
    assert ("a thread beside it" in finding.cause) == (thread == 3 and past_ms == 1)


def test_in_traces_sizes_of_dense_all_reduces_are_compared_and_others_not() -> None:
    def run(op: str) -> Finding:
        def one(rank: int) -> RankTrace:
            sizes = [1024] * 20
            sizes[3] *= 1 + (rank == 1)
            calls = [sync(op, 10 * n, 9, seq=n, nbytes=b, step=0) for n, b in enumerate(sizes)]
            return rank_trace(rank, 3, comm=calls)

        return said(RULE, *map(one, range(3)))

    assert (run("all_reduce").status, run("all_reduce").ranks) == (Status.FAIL, (1,))
    assert "2,048 bytes on rank 1" in run("all_reduce").summary
    assert run("all_to_all").status is Status.PASS
    assert run("all_reduce_sparse").status is Status.PASS


def test_in_traces_a_count_that_differs_at_the_edges_is_no_mismatch() -> None:
    traces = called(0, *USUAL, world=2), called(1, *USUAL[:17], world=2)
    assert said(RULE, *traces).status is Status.PASS


def test_in_traces_numbers_that_disagree_throughout_are_not_believed() -> None:
    other = ["reduce_scatter_tensor"] * 20
    traces = called(0, *USUAL, world=2), called(1, *other, world=2)
    assert said(RULE, *traces).status is Status.UNKNOWN
