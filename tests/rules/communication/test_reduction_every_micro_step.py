from __future__ import annotations

import pytest

from dsprof.findings.finding import Severity, Status
from dsprof.rules.communication.reduction_every_micro_step import ReductionEveryMicroStep
from dsprof.trace.schema import BucketLayout, HookStatus, MemorySample
from tests.factories.engines import WHOLE, interleaved
from tests.factories.trace import (
    MS,
    assert_reached_at,
    captured,
    group,
    said,
    span,
    sync,
    zero_rank,
)

RULE = ReductionEveryMicroStep()

MIB = 1 << 20


def plain(accumulation: int, op: str = "all_reduce"):
    """A run without DeepSpeed: no engine and no flush says what is a gradient."""
    trace = zero_rank(accumulation=accumulation, op=op, engine=None, flushes=[])
    trace.collectives.flush[:] = 0
    return trace


@pytest.mark.parametrize("stage", [2, 3])
def test_sharded_stages_are_informed_by_design(stage):
    finding = said(RULE, zero_rank(stage=stage, accumulation=4))
    assert finding.status is Status.INFO
    assert finding.summary.endswith("redundant, with a blocked time of 15.0 ms.")
    hidden = said(RULE, zero_rank(stage=stage, accumulation=4, comm_ms=0.2))
    assert hidden.summary.endswith("redundant.")
    assert "by design" in finding.cause
    assert finding.saving_bytes_per_step == 3 * MIB
    assert finding.saving_ms_per_step is None


def test_zenflow_needs_each_reduction():
    zero = {"zenflow": {"topk_ratio": 0.1}}
    assert said(RULE, zero_rank(stage=2, accumulation=4, zero=zero)).status is Status.NOT_APPLICABLE


@pytest.mark.parametrize(("stage", "whole"), [(2, "gradients"), (3, "parameters and gradients")])
def test_what_must_fit_into_memory_without_sharding_is_named(stage, whole):
    """With adapters (LoRA) gradients are small, and the parameters of ZeRO-3 are not."""
    finding = said(RULE, zero_rank(stage=stage, accumulation=4))
    assert finding.action.startswith(f"Use ZeRO-1 if whole {whole} fit into memory: ")


@pytest.mark.parametrize("stage", [0, 1])
def test_unsharded_stages_that_reduce_in_each_micro_step_fail(stage):
    finding = said(RULE, zero_rank(stage=stage, accumulation=2, comm_ms=6))
    assert finding.status is Status.FAIL
    assert finding.saving_bytes_per_step == MIB
    assert finding.saving_ms_per_step == pytest.approx((4.5, 7.5))
    assert finding.evidence[0].rows == (("2", 2 << 20), ("1", 1 << 20))


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, zero_rank(stage=0, accumulation=2, comm_ms=6), held_share=0.06)


def test_repetition_that_holds_nobody_costs_bytes_alone():
    finding = said(RULE, zero_rank(stage=1, accumulation=2, comm_ms=0.2))
    assert finding.status is Status.INFO
    assert finding.saving_bytes_per_step == MIB
    assert finding.saving_ms_per_step is None


def test_ddp_without_no_sync_fails():
    assert said(RULE, plain(2)).status is Status.FAIL


def in_closures(accumulation: int):
    """A run whose backwards lie inside the phase of the optimizer's step."""
    trace = plain(accumulation)
    around = [span("step", one.start_ns / MS, one.end_ns / MS, one.step) for one in trace.steps]
    trace.spans = [*(one for one in trace.spans if one.name != "step"), *around]
    return trace


def test_a_closure_that_runs_backward_again_may_need_each_reduction():
    """As that of L-BFGS does."""
    finding = said(RULE, in_closures(3))
    assert finding.status is Status.UNKNOWN
    assert finding.saving_ms_per_step is None


def test_a_closure_that_accumulates_and_reduces_once_is_in_order():
    """As that of Composer does."""
    trace = in_closures(3)
    trace.collectives.micro_step[:] = 2
    assert said(RULE, trace).status is Status.PASS


def test_a_closure_that_runs_the_last_backward_only_reduces_too_often():
    """As Lightning does with accumulation."""
    trace = plain(3)
    last = {one.step: one for one in trace.spans if one.name == "backward"}
    around = [
        span("step", one.start_ns / MS, trace.steps[number].end_ns / MS, number)
        for number, one in last.items()
    ]
    trace.spans = [*(one for one in trace.spans if one.name != "step"), *around]
    assert said(RULE, trace).status is Status.FAIL


def test_fsdp_is_by_design():
    finding = said(RULE, plain(2, "reduce_scatter_tensor"))
    assert finding.status is Status.INFO
    assert "set_requires_gradient_sync(False)" in finding.action


def fsdp_with_room(rank: int, free: int, comm_ms: float = 6):
    trace = zero_rank(
        rank,
        accumulation=2,
        op="reduce_scatter_tensor",
        engine=None,
        flushes=[],
        comm_ms=comm_ms,
    )
    trace.collectives.flush[:] = 0
    trace.memory = [MemorySample("step", 0, step=4, host_available_bytes=free)]
    return trace


@pytest.mark.parametrize(
    ("free", "comm_ms", "status"),
    [(4 * MIB, 6, Status.FAIL), (4 * MIB - 1, 6, Status.INFO), (4 * MIB, 0.2, Status.INFO)],
)
def test_fsdp_fails_if_memory_has_room_for_whole_gradients_and_time_is_lost(free, comm_ms, status):
    finding = said(RULE, *(fsdp_with_room(rank, free, comm_ms) for rank in range(2)))
    assert finding.status is status
    assert "set_requires_gradient_sync(False)" in finding.action
    if status is Status.FAIL:
        assert finding.severity is Severity.MEDIUM
        assert finding.saving_ms_per_step == pytest.approx((4.5, 7.5))
        assert "room to accumulate whole gradients (1.00 MiB per rank)" in finding.cause


@pytest.mark.parametrize("has_trace", [True, False])
def test_fsdp_does_not_fail_if_the_memory_of_a_rank_is_unknown(has_trace):
    first, second = (fsdp_with_room(rank, 99 * MIB) for rank in range(2))
    second.memory = []
    assert said(RULE, *([first, second] if has_trace else [first])).status is Status.INFO


def test_a_hook_of_ddp_by_reduce_scatter_keeps_whole_gradients():
    trace = plain(2, "reduce_scatter_tensor")
    trace.layouts = [BucketLayout(0, 1, [MIB])]
    finding = said(RULE, trace)
    assert finding.status is Status.FAIL
    assert "no_sync() around forward and backward" in finding.action


def test_steps_that_were_skipped_are_no_accumulation():
    trace = zero_rank(steps=12, accumulation=1, engine=None, flushes=[])
    trace.collectives.flush[:] = 0
    for step in trace.steps[4::3]:
        step.micro_steps = 2
    trace.collectives.micro_step[5] = 1
    finding = said(RULE, trace)
    assert finding.status is Status.NOT_APPLICABLE
    assert "skipped steps" in finding.summary


@pytest.mark.parametrize(
    ("all_reduced_in", "every", "redundant"),
    [
        ((0, 1), 1, 2 * MIB),
        ((0, 0, 1, 1), 1, 3 * MIB),
        ((1,), 1, MIB),
        ((1,), 2, MIB),
        ((1, 3), 1, 4 * MIB),
    ],
)
def test_hybrid_sharding_that_also_reduces_among_replicas_is_by_design(
    all_reduced_in, every, redundant
):
    """With set_requires_all_reduce(False) shards are all-reduced in the last micro-step only."""

    def replicas(number, start):
        if number % every:
            return []
        told = {"step": number, "phase": "backward"}
        return [sync("all_reduce", start + 50 + m, 1, micro_step=m, **told) for m in all_reduced_in]

    trace = zero_rank(
        accumulation=all_reduced_in[-1] + 1,
        op="reduce_scatter_tensor",
        engine=None,
        flushes=[],
        extra=replicas,
    )
    trace.collectives.flush[:] = 0
    finding = said(RULE, trace)
    assert finding.status is Status.INFO
    assert finding.saving_bytes_per_step == redundant


def test_what_the_group_of_a_single_rank_reduces_is_not_sent():
    """Experts that each rank has for itself are reduced in a group of this rank."""

    def alone(number, start):
        told = {"step": number, "phase": "backward", "group": 2}
        return [sync("all_reduce", start + 50 + m, 1, micro_step=m, **told) for m in range(2)]

    trace = zero_rank(accumulation=2, extra=alone, engine=None, flushes=[])
    trace.collectives.flush[:] = 0
    trace.groups[2] = group(1, id=2)
    assert said(RULE, trace).saving_bytes_per_step == MIB


def test_one_reduction_a_step_passes():
    trace = zero_rank(stage=1, accumulation=2)
    trace.collectives.micro_step[:] = 1
    assert said(RULE, trace).status is Status.PASS


def test_no_accumulation_is_not_applicable():
    assert said(RULE, zero_rank(accumulation=1)).status is Status.NOT_APPLICABLE


def test_no_gradients_in_the_record_is_unknown():
    trace = zero_rank(accumulation=2, op="broadcast")
    trace.collectives.flush[:] = 0
    assert said(RULE, trace).status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("op", "hooks", "status"),
    [
        ("send", [], Status.NOT_APPLICABLE),
        ("send", [HookStatus("c10d", "torch.distributed", why="error")], Status.UNKNOWN),
        ("all_gather", [], Status.UNKNOWN),
    ],
)
def test_stages_of_a_pipeline_that_only_send_and_receive_reduce_nothing(op, hooks, status):
    def loss(number, start):
        return [sync("all_reduce", start + 90, 1, nbytes=4, phase="backward", step=number)]

    trace = zero_rank(accumulation=2, op=op, engine=None, flushes=[], extra=loss, hooks=hooks)
    trace.collectives.flush[:] = 0
    assert said(RULE, trace).status is status


def test_tensor_parallel_reductions_are_not_taken_for_gradients():
    def forward(number, start):
        return [sync("all_reduce", start + 1, 1, phase="forward", step=number)]

    trace = zero_rank(accumulation=2, engine=None, extra=forward)
    trace.collectives.flush[:] = 0
    assert said(RULE, trace).status is Status.UNKNOWN


def test_a_capture_window_shows_it_too():
    finding = said(RULE, captured(window=range(4, 6), steps=10, accumulation=4))
    assert finding.status is Status.INFO
    assert finding.saving_bytes_per_step == 3 * MIB


def test_counters_alone_do_not_tell():
    finding = said(RULE, captured(window=range(0), steps=10, accumulation=4))
    assert finding.status is Status.UNKNOWN


def test_engines_that_take_turns_are_judged_each_by_its_stage():
    finding = said(RULE, interleaved((1, 2), accumulating=2))
    assert finding.status is Status.INFO
    assert finding.summary.startswith("Engine 2: Gradients are reduced 2 times per step, over 2")
    assert "ZeRO-2 keeps one shard" in finding.cause
    finding = said(RULE, interleaved((2, 0), accumulating=2), held_share=0.001)
    assert finding.status is Status.FAIL
    assert finding.summary.startswith("Engine 2:")
    # It takes 3 of 10 measured steps, and could spare 1 ms in each: 0.6 % of the mean step.
    assert finding.saving_bytes_per_step == round(0.3 * WHOLE)
    assert finding.saving_ms_per_step == pytest.approx((0.225, 0.375))
    hidden = said(RULE, interleaved((2, 0), accumulating=2), held_share=0.01)
    assert hidden.status is Status.INFO


@pytest.mark.parametrize(
    ("severe_share", "severity"), [(0.06, Severity.HIGH), (0.061, Severity.MEDIUM)]
)
def test_it_is_as_grave_as_what_it_costs(severe_share, severity):
    finding = said(RULE, zero_rank(stage=0, accumulation=2, comm_ms=6), severe_share=severe_share)
    assert finding.severity is severity
