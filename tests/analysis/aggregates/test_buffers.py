from __future__ import annotations

from dsprof.analysis.aggregates.buffers import Buffers, RankBuffers
from dsprof.analysis.rank.buffer_levels import Gathered
from dsprof.trace.schema import BucketLayout
from tests.factories.trace import fetch, rank_trace, step, summary, sync

MIB = 1 << 20


def held(**fields) -> RankBuffers:
    """What a rank holds in steps of which 4 and 5 are measured."""
    steps = [step(number, 100 * number, 100 * number + 100) for number in range(6)]
    return summary(rank_trace(steps=steps, **fields))[Buffers].ranks[0]


def gather(number: int, at: float, step: int = 4):
    """A gather of one MiB, in bfloat16."""
    return sync("all_gather", at, 1, fetch=number, step=step, elements=MIB // 2)


def release(number: int, at: float, mib: float, step: int = 4):
    return fetch(number, at, 0, kind="release", elements=round(mib * MIB / 2), step=step)


def test_gathered_is_the_most_at_once_in_a_step():
    comm = [gather(1, 0), gather(2, 10), gather(3, 30), gather(4, 1, 5), gather(5, 2, 5)]
    released = [release(9, 20, 1.5), release(9, 3, 1, step=5)]
    assert held(comm=comm, fetches=released).gathered == Gathered(MIB, 2 * MIB)


def test_what_was_gathered_before_the_record_is_not_released_twice():
    comm = [gather(1, 10), gather(2, 20)]
    assert held(comm=comm, fetches=[release(9, 5, 7)]).gathered == Gathered(MIB, 2 * MIB)


def test_nothing_is_held_where_nothing_is_gathered():
    comm = [sync("all_reduce", 0, 1, step=4, flush=3)]
    assert held(comm=comm) == RankBuffers(Gathered(0, 0), units=0, reduced_bytes=0, ddp_bytes=0)
    assert summary(rank_trace())[Buffers].ranks[0].gathered is None


def test_units_of_fsdp_are_told_by_module_and_size():
    fetches = [
        fetch(n, 0, 1, library="FSDP2", module=module, elements=elements, kind=kind)
        for n, (module, elements, kind) in enumerate(
            [("a", 5, "fetch"), ("a", 5, "prefetch"), ("b", 5, "fetch"), ("c", 99, "release")]
        )
    ]
    comm = [sync("reduce_scatter", n, 1, step=4, flush=n, nbytes=100 * n) for n in range(3)]
    found = held(comm=comm, fetches=fetches)
    assert (found.units, found.reduced_bytes) == (10, 200)


def test_buckets_of_ddp_are_the_latest_of_each_model_unless_gradients_lie_in_them():
    layouts = [
        BucketLayout(1, group=1, nbytes=[10]),
        BucketLayout(1, group=1, nbytes=[20, 30]),
        BucketLayout(2, group=1, nbytes=[40]),
        BucketLayout(3, group=1, nbytes=[80], gradient_as_bucket_view=True),
    ]
    assert held(layouts=layouts).ddp_bytes == 90
