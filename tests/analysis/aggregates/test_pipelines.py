from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from dsprof.analysis.aggregates.pipelines import Pipelines
from tests.factories.trace import (
    captured,
    engine,
    group,
    rank_trace,
    span,
    step,
    summary,
    sync,
    zero_rank,
)


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


def test_stages_that_left_no_trace_are_counted_by_the_group_of_the_pipeline():
    trace = rank(of_rank=(2,))
    trace.groups = {1: group(8), 2: group(4, id=2, key="pipe", role="pipeline")}
    assert summary(trace)[Pipelines].stages == 4


def test_interleaved_stages_have_a_shorter_bubble():
    one, other = (summary(rank(of_rank=stages))[Pipelines] for stages in ((0, 2), (1, 3)))
    assert one.merge(other).bubble == pytest.approx(1 / 9)


def test_the_bubble_of_a_v_is_not_that_of_interleaved_stages():
    """ZBV and DualPipeV give the first rank the last stage, too."""
    for stages, bubble in (((0, 2), pytest.approx(1 / 9)), ((0, 3), None)):
        trace = rank(of_rank=stages)
        trace.groups = {1: group(2, role="pipeline")}
        found = summary(trace)[Pipelines]
        assert (found.stages, found.bubble) == (4, bubble)


def test_the_bubble_of_deepspeeds_dualpipev_is_unknown():
    trace = rank(stages=4)
    (one,) = trace.engines.values()
    one.kind = "DualPipeVEngine"
    assert summary(trace)[Pipelines].bubble is None


def test_the_bubble_of_stages_that_compute_weight_gradients_later_is_unknown():
    trace = rank(of_rank=(0, 2))
    forward = [*trace.spans]
    for times in (1, 2):
        trace.spans = forward + times * [structs.replace(one, name="backward") for one in forward]
        assert summary(trace)[Pipelines].is_of_other_kind == (times == 2)


def sends(
    number: int, *sent: tuple[int, int], world: int = 4, backwards: int = 0, **fields: Any
) -> Pipelines:
    """What one rank says that sends so many activations or gradients to each peer, and shapes."""
    pipeline = group(world, id=2, key="pp", role="pipeline", **fields)
    calls = [(peer, nbytes) for peer, count in sent for nbytes in (1 << 20, 8) * count]
    comm = [
        sync("send", n, 0.5, group=2, seq=n, step=0, peer=peer, nbytes=nbytes)
        for n, (peer, nbytes) in enumerate(calls)
    ]
    trace = rank_trace(number, world, comm=comm, steps=[step(0, 0, 100)], groups={2: pipeline})
    trace.spans = [span("backward", n, n + 1) for n in range(backwards)]
    return summary(trace)[Pipelines]


def test_stages_without_names_are_those_of_the_group_with_as_many_batches_as_an_end_sends():
    assert sends(0, (1, 6)) == sends(3, (2, 6)) == Pipelines(4, 6, 1)
    assert sends(0, (1, 6), world=2) == Pipelines(2, 6, 1)
    assert sends(1, (2, 6), (0, 6)) == Pipelines()
    assert sends(0, (1, 6), ranks=[]) == Pipelines()  # not recorded


def test_sends_round_to_the_other_end_tell_interleaved_stages():
    assert sends(0, (1, 12), (3, 6)) == sends(3, (2, 12), (0, 6)) == Pipelines(8, 6, 2)
    assert sends(0, (1, 7), (3, 4)) == Pipelines(4, 0, 1)  # no schedule that is known


def test_more_backwards_than_an_end_sends_are_of_a_schedule_that_splits_them():
    assert sends(0, (1, 6), backwards=6).bubble == pytest.approx(3 / 9)
    assert sends(0, (1, 6), backwards=12) == Pipelines(4, 6, 1, is_of_other_kind=True)


def test_without_a_pipeline_there_is_none():
    for trace in (zero_rank(accumulation=4), rank(stages=1), rank_trace()):
        assert summary(trace)[Pipelines] == Pipelines()
    assert Pipelines().bubble is None


def test_micro_batches_that_were_not_seen_are_not_known():
    config = engine(0)
    config.pipeline_stages = 2
    assert summary(captured(window=range(0), steps=8, engine=config))[Pipelines].bubble is None
