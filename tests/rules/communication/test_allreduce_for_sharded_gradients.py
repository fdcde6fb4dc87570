from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.allreduce_for_sharded_gradients import AllreduceForShardedGradients
from dsprof.trace.schema import EngineConfig
from tests.factories.engines import interleaved
from tests.factories.trace import (
    engine,
    group,
    issued,
    judged,
    rank_trace,
    said,
    span,
    step,
    sync,
    zero_rank,
)

RULE = AllreduceForShardedGradients()

MIB = 1 << 20


def ranks(**fields):
    fields = {"world_size": 4, **fields}
    return [zero_rank(rank, **{"nbytes": 8 * MIB, "comm_ms": 10, **fields}) for rank in range(4)]


@pytest.mark.parametrize("stage", [1, 2])
def test_stages_1_and_2_are_informed_with_the_arithmetic(stage):
    finding = said(RULE, *ranks(stage=stage))
    assert finding.status is Status.INFO
    assert "by design" in finding.summary
    assert "has no effect" not in finding.summary
    assert finding.saving_bytes_per_step == 6 * MIB
    assert finding.saving_ms_per_step is None
    assert finding.config_patch is None
    (table,) = finding.evidence
    assert table.rows == (
        ("all_reduce", 8 * MIB, 12 * MIB),
        ("reduce_scatter", 8 * MIB, 6 * MIB),
    )


def test_an_engine_that_does_not_train_reduces_nothing() -> None:
    findings = judged(RULE, interleaved((2, 2), reference=3))
    assert [one.summary[:9] for one in findings] == ["Engine 1:", "Engine 2:"]


def test_the_gradients_of_experts_count_where_they_have_a_group_of_their_own():
    def of_experts(number, start):
        told = {"step": number, "phase": "backward", "flush": 1 + number, "group": 2}
        return [sync("all_reduce", start + 70, 1, nbytes=2 * MIB, **told)]

    traces = ranks(stage=1, extra=of_experts)
    for rank, trace in enumerate(traces):
        trace.groups[2] = group(id=2, ranks=[rank // 2 * 2, rank // 2 * 2 + 1], key=str(rank // 2))
    finding = said(RULE, *traces)
    assert "2 calls and 10.0 MiB per step" in finding.summary
    assert finding.saving_bytes_per_step == 7 * MIB
    assert [table.rows[1] for table in finding.evidence] == [
        ("reduce_scatter", 8 * MIB, 6 * MIB),
        ("reduce_scatter", 2 * MIB, MIB),
    ]


@pytest.mark.parametrize("stage", [1, 2])
def test_reduce_scatter_asked_for_at_stages_1_and_2_is_an_intent_missed(stage):
    finding = said(RULE, *ranks(stage=stage, zero={"reduce_scatter": True}))
    assert finding.status is Status.INFO
    assert "reduce_scatter is true, but has no effect" in finding.summary


@pytest.mark.parametrize(
    ("stage", "op"), [(1, "reduce"), (2, "reduce"), (3, "reduce_scatter_tensor")]
)
def test_what_the_stage_does_best_passes(stage, op):
    assert said(RULE, *ranks(stage=stage, op=op)).status is Status.PASS


def test_stage_3_without_reduce_scatter_fails_and_names_the_key():
    finding = said(RULE, *ranks(stage=3, zero={"reduce_scatter": False}))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert "reduce_scatter is false" in finding.cause
    assert finding.config_patch == {"zero_optimization": {"reduce_scatter": True}}
    assert finding.saving_ms_per_step is None, "what a byte costs is not known"
    assert finding.saving_bytes_per_step == 6 * MIB
    assert finding.evidence[0].rows == (
        ("all_reduce", 8 * MIB, 12 * MIB),
        ("reduce_scatter", 8 * MIB, 6 * MIB),
    )


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"optimizer": {"type": "muon"}}, "Muon"),
        ({"prescale_gradients": True}, "prescale_gradients"),
        ({"gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
    ],
)
def test_stage_3_is_not_told_to_set_what_deepspeed_would_refuse(setting, named):
    traces = ranks(stage=3, zero={"reduce_scatter": False})
    for trace in traces:
        trace.engines[1].effective.update(setting)
    finding = said(RULE, *traces)
    assert finding.status is Status.INFO
    assert named in finding.cause
    assert (finding.config_patch, finding.saving_ms_per_step) == (None, None)


def test_stage_3_all_reduce_without_a_cause_in_the_settings_offers_no_patch():
    finding = said(RULE, *ranks(stage=3))
    assert finding.status is Status.FAIL
    assert finding.config_patch is None
    assert finding.confidence == "medium"


def test_parameters_fetched_by_all_reduce_fail():
    def fetches(number, start):
        times = {"wait": start + 6, "waited": start + 8}
        return [issued("all_reduce", start + 5, start + 8, **times, step=number, fetch=9)]

    finding = said(RULE, *ranks(stage=3, op="reduce_scatter_tensor", extra=fetches))
    assert finding.status is Status.FAIL
    assert finding.title == "All-reduce is used where an all-gather would suffice"
    assert [row[0] for row in finding.evidence[0].rows] == ["all_reduce", "all_gather"]
    key = "stage3_use_all_reduce_for_fetch_params"
    assert finding.config_patch == {"zero_optimization": {key: False}}


@pytest.mark.parametrize("key", ["contiguous_gradients", "reduce_scatter"])
def test_reduces_asked_for_and_kept_from_are_an_intent_missed(key):
    zero = {"use_multi_rank_bucket_allreduce": False, key: False}
    finding = said(RULE, *ranks(zero=zero))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.LOW)
    assert finding.title == "All-reduce is used where reduces to the owners were configured"
    assert finding.summary.startswith("use_multi_rank_bucket_allreduce is false")
    assert finding.config_patch == {"zero_optimization": {key: True}}


@pytest.mark.parametrize("engine", [None, EngineConfig(engine=1)])
def test_unsharded_runs_are_not_applicable(engine):
    trace = zero_rank(stage=0, engine=engine)
    assert said(RULE, trace).status is Status.NOT_APPLICABLE


def test_one_rank_has_nothing_to_reduce():
    assert said(RULE, zero_rank(world_size=1)).status is Status.NOT_APPLICABLE


def test_steps_without_a_collective_are_unknown():
    steps = [step(n, 100 * n, 100 * (n + 1)) for n in range(6)]
    finding = said(RULE, *(rank_trace(n, steps=steps, engine=engine()) for n in range(2)))
    assert finding.status is Status.UNKNOWN
    assert finding.summary.startswith("No collective between two or more ranks was recorded")


def test_no_gradients_in_the_record_is_unknown():
    blind = [
        zero_rank(op="broadcast", flushes=[]),
        zero_rank(1, comm_ms=0, flushes=[], op="all_gather"),
    ]
    for trace in blind:
        trace.collectives.flush[:] = 0
    assert said(RULE, *blind).status is Status.UNKNOWN


def test_no_collectives_is_unknown():
    trace = zero_rank()
    empty = rank_trace(engine=trace.engines[1], steps=[step(0, 0, 9)])
    assert said(RULE, empty).status is Status.UNKNOWN


def in_turn(*, owner_of_unnamed: bool = True):
    """Two ranks of two engines: 1 at stage 2, 2 at stage 3 by all_reduce; 3 takes no step."""
    traces = ranks(world_size=2)[:2]
    for trace in traces:
        trace.engines = {
            1: trace.engines[1],
            2: engine(3, reduce_scatter=False),
            3: engine(3),
        }
        for number, one in trace.engines.items():
            one.engine = number
        for one in trace.steps:
            one.engine = 1 + one.step % 2 if owner_of_unnamed else -1
        trace.spans.append(span("forward", 301, 302, 3, engine=3))
    return traces


def test_several_engines_are_judged_each_at_its_stage():
    found = judged(RULE, *in_turn())
    assert [(one.status, one.summary[:9]) for one in found] == [
        (Status.FAIL, "Engine 2:"),
        (Status.INFO, "Engine 1:"),
    ]
    for one in found:  # a step is one that the engine took
        assert "1 call and 8.00 MiB per step" in one.summary
    assert found[0].config_patch == {"zero_optimization": {"reduce_scatter": True}}


def test_of_engines_whose_steps_are_the_program_s_nothing_is_known():
    (finding,) = judged(RULE, *in_turn(owner_of_unnamed=False))
    assert finding.status is Status.UNKNOWN
    assert "which of several engines" in finding.summary
