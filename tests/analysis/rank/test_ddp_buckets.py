from __future__ import annotations

from typing import Any

import numpy as np

from dsprof.analysis.aggregates.flushes import Flushes
from dsprof.analysis.rank.ddp_buckets import attach_buckets
from dsprof.trace.lines import Line
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import BucketLayout
from tests.factories.trace import MS, group, issued, rank_trace, step, summary

LAYOUT = BucketLayout(0, 1, [4000, 2000], [3, 1], capacity_bytes=4000, is_rebuilt=True)


def reduced(nbytes: int, at: float, **fields: Any) -> Line:
    given: dict[str, Any] = {"step": 0, "phase": "backward", **fields}
    return issued("all_reduce", at, at + 1, nbytes=nbytes, **given)


def buckets(trace: RankTrace) -> list[tuple[int, int, int]]:
    """Micro-step, bucket and bytes of each flush."""
    attach_buckets(trace)
    return [
        (flush.micro_step, flush.bucket, flush.nbytes)
        for flush in sorted(trace.flushes, key=lambda f: f.start_ns)
    ]


def test_the_all_reduces_of_a_backward_are_the_buckets_in_order():
    trace = rank_trace(layouts=[LAYOUT], comm=[reduced(4000, 1), reduced(2000, 2)])
    assert buckets(trace) == [(0, 0, 4000), (0, 1, 2000)]
    first, last = trace.flushes
    assert (first.cause, last.cause) == ("full", "end of backward")
    assert (first.parameters, first.capacity, first.library) == (3, first.elements, "DDP")
    assert trace.collectives.flush.tolist() == trace.collectives.id.tolist()


def test_the_first_bucket_of_a_default_ddp_is_full_at_1_mib():
    def capacities(cap_mib: int, *, is_rebuilt: bool = True) -> list[int]:
        sizes = [1_052_676, 5_253_120]
        layout = BucketLayout(0, 1, sizes, [4, 10], cap_mib << 20, is_rebuilt=is_rebuilt)
        comm = [reduced(nbytes, at) for at, nbytes in enumerate(sizes)]
        trace = rank_trace(layouts=[layout], comm=comm)
        attach_buckets(trace)
        return [flush.capacity * 4 >> 20 for flush in trace.flushes]

    assert capacities(25) == [1, 25]
    assert capacities(25, is_rebuilt=False) == [25, 25]
    assert capacities(1) == [1, 1]


def test_each_micro_step_begins_with_the_first_bucket():
    comm = [reduced(n, at, micro_step=at // 2) for at, n in enumerate((4000, 2000, 4000, 2000))]
    assert [row[:2] for row in buckets(rank_trace(layouts=[LAYOUT], comm=comm))] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]


def test_other_all_reduces_are_passed_over():
    comm = [
        reduced(4000, 1),
        reduced(12, 2, dtype="int32"),
        reduced(2000, 3, phase="forward"),
        reduced(2000, 4),
        reduced(2000, 5),
        reduced(4000, 6, group=9),
        issued("reduce_scatter", 7, 8, nbytes=4000, phase="backward"),
    ]
    trace = rank_trace(layouts=[LAYOUT], comm=comm)
    assert buckets(trace) == [(0, 0, 4000), (0, 1, 2000)]
    assert np.flatnonzero(trace.collectives.flush).tolist() == [0, 3]


def test_what_belongs_to_another_flush_already_is_no_bucket():
    comm = [reduced(4000, 1, flush=8), reduced(2000, 2, flush=9)]
    assert buckets(rank_trace(layouts=[LAYOUT], comm=comm)) == []


def test_a_layout_holds_from_when_it_was_made():
    before = BucketLayout(0, 1, [6000], capacity_bytes=4000)
    after = BucketLayout(0, 1, [4000, 2000], since_ns=10 * MS)
    comm = [reduced(6000, 1), reduced(4000, 11, step=1), reduced(2000, 12, step=1)]
    assert [row[1:] for row in buckets(rank_trace(layouts=[before, after], comm=comm))] == [
        (0, 6000),
        (0, 4000),
        (1, 2000),
    ]


def test_compressed_gradients_are_the_same_buckets():
    comm = [reduced(2000, 1, dtype="bfloat16"), reduced(1000, 2, dtype="bfloat16")]
    assert [row[1] for row in buckets(rank_trace(layouts=[LAYOUT], comm=comm))] == [0, 1]


def test_half_of_a_bucket_in_float32_is_no_bucket():
    comm = [reduced(2000, 1), reduced(1000, 2)]
    assert buckets(rank_trace(layouts=[LAYOUT], comm=comm)) == []


def test_gradients_of_half_precision_that_nothing_compressed_are_buckets_too():
    comm = [reduced(4000, 1, dtype="float16"), reduced(2000, 2, dtype="float16")]
    assert [row[1] for row in buckets(rank_trace(layouts=[LAYOUT], comm=comm))] == [0, 1]


def test_two_models_on_one_group_are_told_apart_by_their_sizes():
    other = BucketLayout(1, 1, [9000, 7000])
    comm = [reduced(9000, 1), reduced(7000, 2), reduced(4000, 3), reduced(2000, 4)]
    assert [row[1:] for row in buckets(rank_trace(layouts=[LAYOUT, other], comm=comm))] == [
        (0, 9000),
        (1, 7000),
        (0, 4000),
        (1, 2000),
    ]


def test_a_group_that_two_hooks_described_is_one():
    twice = {1: group(), 2: group(id=2)}
    comm = [reduced(4000, 1, group=2), reduced(2000, 2, group=2)]
    assert len(buckets(rank_trace(layouts=[LAYOUT], comm=comm, groups=twice))) == 2


def test_the_summary_has_a_row_for_each_bucket():
    trace = rank_trace(
        layouts=[LAYOUT], comm=[reduced(4000, 1), reduced(2000, 2)], steps=[step(0, 0, 10)]
    )
    rows = summary(trace)[Flushes].rows
    assert sorted((kind.library, kind.bucket) for kind in rows) == [("DDP", 0), ("DDP", 1)]
    assert all(sums.wire_ops == {"all_reduce": 1} for sums in rows.values())
