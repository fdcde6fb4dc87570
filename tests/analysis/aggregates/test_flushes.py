from __future__ import annotations

from collections import Counter

from dsprof.analysis.aggregates.flushes import Flushes
from tests.factories.trace import MS, captured, flush, rank_trace, step, summary, sync, zero_rank


def test_flushes_that_are_alike_are_one_row():
    ((kind, sums),) = summary(zero_rank(0), zero_rank(1))[Flushes].rows.items()
    assert (kind.stage, kind.cause, kind.nbytes) == (2, "end of backward", 1 << 20)
    assert (sums.flushes, sums.rank_steps) == (8, 8)
    assert sums.wire_ops == Counter(all_reduce=8)
    assert sums.duration_ns == sums.exposed_ns == 8 * 5 * MS


def test_a_flush_owns_the_operations_that_it_issued():
    trace = rank_trace(
        steps=[step(0, 0, 100)],
        flushes=[flush(1, 0, 30, step=0), flush(2, 40, 9, step=0, cause="full")],
        comm=[
            sync("reduce", 1, 3, step=0, flush=1),
            sync("reduce", 5, 4, step=0, flush=1),
            sync("all_reduce", 60, 2, step=0),
        ],
    )
    rows = {kind.cause: sums for kind, sums in summary(trace)[Flushes].rows.items()}
    assert rows["end of backward"].wire_ops == Counter(reduce=2)
    assert rows["end of backward"].exposed_ns == 7 * MS
    assert rows["full"].wire_ops == Counter()


def test_flushes_outside_measured_steps_are_left_out():
    trace = rank_trace(steps=[step(0, 0, 9)], flushes=[flush(1, 20, 3, step=7)])
    assert not summary(trace)[Flushes].rows


def test_flushes_are_averaged_over_steps_in_detail():
    ((_, sums),) = summary(captured(window=range(4, 7), steps=10))[Flushes].rows.items()
    assert (sums.flushes, sums.rank_steps) == (3, 3)
