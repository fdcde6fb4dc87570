from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
from msgspec import structs

from dsprof.analysis.aggregates.pipelines import Pipelines
from dsprof.findings.finding import Severity, Status
from dsprof.rules.causes import EXPOSED
from dsprof.rules.overlap.pipeline_bubble import PipelineBubble
from dsprof.trace.rank_trace import RankTrace
from tests.factories.trace import (
    assert_reached_at,
    captured,
    device_step,
    engine,
    enqueued,
    group,
    header,
    judged,
    ns,
    rank_trace,
    said,
    stall,
    step,
    sync,
    zero_rank,
)

RULE = PipelineBubble()


def rank(
    stages=4,
    batches=4,
    waited_ms: float = 30,
    number: int = 0,
    waits=MappingProxyType({}),
    world: int = 2,
    **fields,
):
    def extra(step, start):
        return [sync("recv", start, waits.get(step, waited_ms), step=step)]

    config = engine(0)
    config.pipeline_stages = stages
    fields = {"comm_ms": 0.1, **fields}
    return zero_rank(
        number, world, stage=0, accumulation=batches, extra=extra, engine=config, **fields
    )


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

    stages = stage(0, 30, "gradient to stage 0"), stage(1, 10, "activation to stage 1")
    assert "wait 20 % of the step" in said(RULE, *stages).summary


def uneven(*waited_ms: float, batches: int = 16, count: int = 14, **fields):
    """Stages, a rank each, that wait less where they work longer."""
    return [
        rank(
            len(waited_ms),
            batches,
            waited_ms=ms,
            number=number,
            steps=count,
            world=len(waited_ms),
            **fields,
        )
        for number, ms in enumerate(waited_ms)
    ]


def of_stages(traces, *pipelines):
    """The same ranks in these pipelines."""
    for trace in traces:
        mine = enumerate((ranks for ranks in pipelines if trace.rank in ranks), 2)
        pipes = [
            group(id=n, key=f"pipe {ranks}", role="pipeline", ranks=ranks) for n, ranks in mine
        ]
        trace.groups = {1: group(len(traces))} | {pipe.id: pipe for pipe in pipes}
    return traces


@pytest.mark.parametrize(("batches", "saving"), [(16, (7.8, 13)), (4, None)])
def test_a_stage_that_works_longer_fails_beside_any_bubble(batches, saving):
    """Of 4 stages the others wait 12 ms longer; where the pipeline mostly fills, less is saved."""
    found = judged(RULE, *uneven(40, 40, 40, 28, batches=batches))
    assert [one.status for one in found] == [Status.FAIL] * (2 if batches == 4 else 1)
    first = found[0]
    assert (first.severity, first.ranks) == (Severity.MEDIUM, (3,))
    assert first.summary.startswith("Rank 3 works 11.")
    assert first.summary.endswith("longer than the median (12 %): the other stages wait.")
    assert "partition_method" in first.action
    assert first.saving_ms_per_step == (saving and pytest.approx(saving, rel=0.05))
    assert first.exposed_per_saving == 3 / 4
    assert bool(first.explains_ms) is not bool(saving)


def test_balanced_a_stage_still_takes_its_part():
    """Of 12 ms that one of two stages works longer, each takes 6 ms."""
    (found,) = judged(RULE, *uneven(40, 28))
    assert found.saving_ms_per_step == (pytest.approx(6, rel=0.05), pytest.approx(12, rel=0.05))


def test_the_slowest_stages_are_named():
    """Rank 3 works 12 ms longer, rank 4 40 ms."""
    assert said(RULE, *uneven(60, 60, 60, 48, 20)).ranks == (4,)


def test_other_waits_are_those_for_the_slow_stage():
    """The bubble explains 9 ms of 75 ms."""
    assert [one.ranks for one in judged(RULE, *uneven(75, 75, 75, 60, batches=8))] == [(3,)]


def test_settings_of_deepspeed_are_advised_where_it_trains():
    traces = uneven(40, 28)
    for trace in traces:
        trace.engines = {}
        for span in trace.spans:
            span.stage = trace.rank if span.name == "forward" else -1
    found = said(RULE, *traces)
    assert found.ranks == (1,)
    assert "PipelineModule" not in found.action


def device_rank(number: int, waited_ms: float) -> RankTrace:
    lines = [enqueued("recv", 100 * n, step=n, seq=n) for n in range(14)]
    stalls = [stall(one, "collective", 100 * n, 100 * n + waited_ms) for n, one in enumerate(lines)]
    times = [(n, 100 * n, 100 * n + 100) for n in range(14)]
    config = engine(0)
    config.pipeline_stages = 2
    return rank_trace(
        number,
        comm=lines,
        stalls=stalls,
        engine=config,
        head=header(number, device="cuda", backend="nccl"),
        steps=[step(*one) for one in times],
        device_steps=[device_step(*one) for one in times],
    )


@pytest.mark.parametrize(("waited_ms", "ranks"), [(31, (1,)), (36, ())])
def test_on_a_device_a_twentieth_of_the_step_is_worth_balancing(waited_ms, ranks):
    finding = judged(RULE, device_rank(0, 40), device_rank(1, waited_ms))[0]
    assert (finding.status is Status.FAIL, finding.ranks) == (bool(ranks), ranks)
    assert finding.severity is (Severity.LOW if ranks else Severity.NONE)


@pytest.mark.parametrize(
    "traces",
    [
        uneven(40, 31),  # little of a CPU
        uneven(40, 10, 10, 10),  # most work longer than one
        uneven(40, 28, count=8),  # which may be chance
        uneven(50, 45, waits=dict.fromkeys(range(0, 14, 3), 0)),
        of_stages(uneven(40, 10, 40, 40), [0, 2], [1, 3]),  # rank 0 has the same layers
    ],
    ids=["little", "most", "few steps", "in some steps", "alone"],
)
def test_what_is_no_slow_stage_passes(traces):
    assert not any(one.ranks for one in judged(RULE, *traces))


def test_stages_that_are_slow_in_turn_are_not_named():
    """Two of three work longer than the third; all than rank 0."""
    waits = [{n: 30 for n in range(150) if n % 3 == turn} for turn in range(3)]
    others = [rank(4, 16, 10, 1 + turn, waits[turn], 4, steps=150) for turn in range(3)]
    traces = [rank(4, 16, 60, world=4, steps=150), *others]
    assert not any(one.ranks for one in judged(RULE, *traces))


def test_a_stage_that_computes_no_longer_is_not_asked_to_give_layers_away():
    traces = uneven(40, 40, 5, batches=1)
    for one in traces[2].spans:
        if one.name == "forward":
            one.end_ns = one.start_ns + ns(5)
    assert not any(one.ranks for one in judged(RULE, *traces))


@pytest.mark.parametrize(
    ("pipelines", "of_a_rank", "fix"),
    [
        ([[0, 2], [1, 3]], 1, "stage 0"),
        ([[0, 1, 2, 3], [0, 3]], 1, "stages 0-1"),  # the ends share weights
        ([[0, 1, 2, 3]], 2, "the stages of ranks 0-1"),  # interleaved
        ([[0, 2]], 1, "the stages of ranks 0-1"),
        ([], 1, "the stages of ranks 0-1"),
    ],
)
def test_stages_are_named_by_the_groups_of_their_pipeline(pipelines, of_a_rank, fix):
    traces = of_stages(uneven(10, 15, 40, 40), *pipelines)
    for trace in traces:
        forwards = [span for span in trace.spans if span.name == "forward"]
        for place, span in enumerate(forwards):
            span.stage = place % of_a_rank
    finding = judged(RULE, *traces)[0]
    assert (finding.ranks, finding.fix) == ((0, 1), f"Move layers from {fix}")
    assert finding.summary.startswith("Ranks 0-1 work 29.4 ms")  # rank 0, the slower


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
    assert said(RULE, rank(batches=27), bubble_share=0.1).status is Status.PASS


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
