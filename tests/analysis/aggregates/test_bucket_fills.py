from __future__ import annotations

from dsprof.analysis.aggregates.bucket_fills import MOST_FLUSHES, BucketFills, StepFills
from tests.factories.trace import flush, ns, rank_trace, span, step, summary


def filled(*flushes, spans=(), steps=None, rank=0):
    steps = steps or [step(0, 0, 100)]
    return rank_trace(rank, steps=steps, flushes=flushes, spans=list(spans))


def found(*traces) -> StepFills:
    made = summary(*traces)[BucketFills].found
    assert made is not None
    return made


def test_a_bucket_fills_after_the_one_before_or_as_backward_begins():
    backwards = [span("backward", start, start + 30, 0) for start in (10, 60)]
    made = found(
        filled(
            flush(3, 70, 5, step=0),
            flush(1, 20, 5, step=0),
            flush(2, 30, 5, step=0),
            spans=backwards,
        )
    )
    assert [(since, one.id) for since, one in made.flushes] == [
        (ns(10), 1), (ns(25), 2), (ns(60), 3),
    ]  # fmt: skip


def test_the_step_of_median_length_of_the_lowest_rank_is_taken():
    steps = [step(0, 0, 100), step(1, 100, 130), step(2, 130, 180)]  # the first is warm-up
    flushes = [flush(n, at, 1, step=n) for n, at in ((0, 10), (1, 110), (2, 140))]
    other = filled(flush(1, 5, 1, step=0), rank=1)
    made = found(other, filled(*flushes, steps=steps))
    assert (made.rank, made.step.step) == (0, 2)


def test_buckets_without_a_capacity_have_no_fill():
    assert summary(filled(flush(1, 5, 1, step=0, capacity=0)))[BucketFills].found is None


def test_of_many_reductions_the_first_are_kept():
    made = found(filled(*(flush(n, n / 10, 0.01, step=0) for n in range(MOST_FLUSHES + 5))))
    assert (len(made.flushes), made.left_out) == (MOST_FLUSHES, 5)
