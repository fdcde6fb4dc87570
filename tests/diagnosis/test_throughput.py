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


def test_a_long_step_lowers_what_is_trained_in_a_second() -> None:
    trace = zero_rank(steps=6)
    trace.steps[-1].end_ns += 400 * 10**6
    for engine in trace.engines.values():
        engine.effective = {**engine.effective, "train_batch_size": 8}
    made = diagnosis_of(summary(trace), {})
    lengths = [row.total_ns for row in made.steps.rows if row.is_measured]
    assert max(lengths) > 4 * min(lengths)
    assert made.throughput.samples_per_s == pytest.approx(8e9 * len(lengths) / sum(lengths))
