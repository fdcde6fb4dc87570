"""What a step trains, over its mean length."""

from __future__ import annotations

import pytest

from dsprof.diagnosis.build import diagnosis_of
from dsprof.trace.rank_trace import RankTrace
from tests.factories.engines import interleaved
from tests.factories.trace import summary, zero_rank


@pytest.mark.parametrize(
    ("trace", "samples"),
    [
        (zero_rank(), 8),
        # As a generator and its discriminator, which take a step each on the same batch.
        (interleaved(), None),
    ],
    ids=["one engine", "engines that take turns"],
)
def test_samples_are_those_of_the_only_engine_that_takes_steps(
    trace: RankTrace, samples: int | None
) -> None:
    for engine in trace.engines.values():
        engine.effective = {**engine.effective, "train_batch_size": 8}
    assert diagnosis_of(summary(trace), {}).throughput.samples_per_step == samples


def test_a_long_step_lowers_what_is_trained_in_a_second_unless_the_run_has_not_settled() -> None:
    trace = zero_rank(steps=30)
    for number in (0, 1, 2, 3, 4, 5, -1):
        trace.steps[number].end_ns += 400 * 10**6
    for engine in trace.engines.values():
        engine.effective = {**engine.effective, "train_batch_size": 8}
    made = diagnosis_of(summary(trace), {})
    assert made.steps.typical is not None
    assert made.steps.typical.settled_from == 6
    lengths = [row.total_ns for row in made.steps.rows if row.step is not None and row.step >= 6]
    assert max(lengths) > 4 * min(lengths)
    assert made.throughput.samples_per_s == pytest.approx(8e9 * len(lengths) / sum(lengths))
