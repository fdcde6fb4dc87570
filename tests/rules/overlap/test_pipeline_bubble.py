from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from dsprof.analysis.aggregates.pipelines import Pipelines
from dsprof.findings.finding import Status
from dsprof.rules.causes import EXPOSED
from dsprof.rules.overlap.pipeline_bubble import PipelineBubble
from dsprof.trace.rank_trace import RankTrace
from tests.factories.trace import assert_reached_at, captured, engine, header, said, sync, zero_rank

RULE = PipelineBubble()


def rank(stages: int = 4, batches: int = 4, waited_ms: float = 30, number: int = 0, **fields):
    def extra(step, start):
        return [sync("recv", start, waited_ms, step=step)]

    config = engine(0)
    config.pipeline_stages = stages
    fields = {"comm_ms": 0.1, **fields}
    return zero_rank(number, stage=0, accumulation=batches, extra=extra, engine=config, **fields)


def test_too_few_micro_batches_fail():
    finding = said(RULE, rank())
    assert finding.status is Status.FAIL
    assert "With 4 stages and 4 micro-batches the bubble is 43 %" in finding.summary
    assert "wait 30 % of the step" in finding.summary
    assert "12 micro-batches or more" in finding.action
    assert finding.evidence[0].rows == ((4, 4, pytest.approx(3 / 7), 30.0),)


def test_waits_are_the_mean_over_stages_whose_transfers_differ():
    def stage(number, waited_ms, requested):
        def extra(step, start):
            return [sync("recv", start, waited_ms, step=step, requested=requested)]

        config = engine(0)
        config.pipeline_stages = 4
        return zero_rank(number, stage=0, accumulation=4, extra=extra, engine=config)

    finding = said(RULE, stage(0, 30, "gradient to stage 0"), stage(1, 10, "activation to stage 1"))
    assert "wait 20 % of the step" in finding.summary


@pytest.mark.parametrize(("longer_ms", "ranks"), [(30, (1,)), (5, ())])
def test_a_stage_that_works_longer_is_named_though_the_bubble_is_small(longer_ms, ranks):
    """Of 16 micro-batches on 2 stages 6 % are the bubble; rank 1 waits less, as it works longer."""

    def stage(number: int) -> RankTrace:
        return rank(2, 16, waited_ms=40 - number * longer_ms, number=number)

    finding = said(RULE, stage(0), stage(1))
    assert (finding.status, finding.ranks) == (Status.INFO if ranks else Status.PASS, ranks)
    assert ("Rank 1 works 29.4 ms per step longer" in finding.cause) is bool(ranks)
    assert finding.title == "One rank of the pipeline works longer" or not ranks


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, rank(), waited_share=0.3)


@pytest.mark.parametrize(
    ("stages", "of_a_rank", "needed"), [(2, 1, 4), (8, 1, 28), (8, 2, 6), (8, 4, 1), (12, 3, 4)]
)
def test_micro_batches_that_are_asked_for_leave_a_fifth(stages, of_a_rank, needed):
    pipelines = Pipelines(stages, 1, of_a_rank)
    assert pipelines.micro_batches_for(0.2) == needed
    assert replace(pipelines, micro_batches=needed).bubble <= 0.2 + 1e-9
    assert needed == 1 or replace(pipelines, micro_batches=needed - 1).bubble > 0.2


def test_enough_micro_batches_or_short_waits_pass():
    assert said(RULE, rank(batches=16)).status is Status.PASS
    assert said(RULE, rank(waited_ms=5)).status is Status.PASS
    assert said(RULE, rank(waited_ms=0)).status is Status.PASS


@pytest.mark.parametrize(("stages", "batches"), [(2, 4), (3, 8), (4, 12), (5, 16)])
def test_a_run_that_follows_the_advice_passes(stages, batches):
    assert said(RULE, rank(stages, batches)).status is Status.PASS
    assert f"into {batches} micro-batches" in said(RULE, rank(stages, batches - 1)).action


def test_the_bubble_asked_for_is_the_threshold():
    assert (
        "27 micro-batches or more (a bubble of 10 %)"
        in said(RULE, rank(batches=16, waited_ms=20), bubble_share=0.1).action
    )
    assert said(RULE, rank(batches=16, waited_ms=20), bubble_share=0).status is Status.FAIL


def test_waits_that_the_bubble_does_not_explain_are_not_shortened_by_micro_batches():
    """Of 75 ms in receives the bubble of 27 % explains 9 ms: 24 ms of the step are computed."""
    finding = said(RULE, rank(batches=8, waited_ms=75))
    assert (finding.status, finding.restates) == (Status.INFO, EXPOSED)
    assert finding.summary.endswith("The bubble explains only 9.3 % of the step.")
    assert "micro-batches or more" not in finding.action + finding.fix


def test_waits_that_were_not_measured_leave_the_schedule():
    finding = said(RULE, rank(head=header(device="cuda", backend="nccl")))
    assert finding.status is Status.INFO
    assert finding.summary.endswith("43 % of the schedule.")


def test_no_pipeline_is_not_applicable():
    assert said(RULE, zero_rank()).status is Status.NOT_APPLICABLE
    assert said(RULE, rank(stages=1)).status is Status.NOT_APPLICABLE


def test_counters_do_not_tell():
    config = engine(0)
    config.pipeline_stages = 2
    trace = captured(window=range(0), steps=8, engine=config)
    assert said(RULE, trace).status is Status.UNKNOWN


def test_a_schedule_without_formula_is_unknown():
    trace = rank()
    for one in trace.spans:
        one.stage = 0 if one.name == "forward" else -1
    trace.spans += [structs.replace(s, name="backward") for s in trace.spans if s.stage == 0] * 2
    finding = said(RULE, trace)
    assert finding.status is Status.UNKNOWN
    assert "zero-bubble" in finding.summary


def test_thresholds_move_the_verdict():
    assert said(RULE, rank(), bubble_share=0.5).status is Status.PASS
