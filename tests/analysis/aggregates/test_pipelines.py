from __future__ import annotations

import pytest

from dsprof.analysis.aggregates.pipelines import Pipelines
from tests.factories.trace import captured, engine, rank_trace, span, step, summary, zero_rank


def rank(stages: int = 0, batches: int = 4, of_rank=(-1,)):
    config = engine(0)
    config.pipeline_stages = stages
    spans = [
        span("forward", 10 * m, 10 * m + 5, micro_step=m, stage=stage)
        for m in range(batches)
        for stage in of_rank
    ]
    return rank_trace(steps=[step(0, 0, 100)], spans=spans, engine=config)


def test_stages_of_deepspeeds_engine():
    found = summary(rank(stages=4))[Pipelines]
    assert found == Pipelines(4, 4, 1)
    assert found.bubble == pytest.approx(3 / 7)


def test_stages_of_torchs_pipelining_are_those_of_all_ranks():
    found = summary(rank(of_rank=(0,)))[Pipelines].merge(summary(rank(of_rank=(1,)))[Pipelines])
    assert found == Pipelines(2, 4, 1)
    assert found.bubble == pytest.approx(1 / 5)


def test_interleaved_stages_have_a_shorter_bubble():
    one, other = (summary(rank(of_rank=stages))[Pipelines] for stages in ((0, 2), (1, 3)))
    assert one.merge(other).bubble == pytest.approx(1 / 9)


def test_without_a_pipeline_there_is_none():
    for trace in (zero_rank(accumulation=4), rank(stages=1), rank_trace()):
        assert summary(trace)[Pipelines] == Pipelines()
    assert Pipelines().bubble is None


def test_micro_batches_that_were_not_seen_are_not_known():
    config = engine(0)
    config.pipeline_stages = 2
    assert summary(captured(window=range(0), steps=8, engine=config))[Pipelines].bubble is None
