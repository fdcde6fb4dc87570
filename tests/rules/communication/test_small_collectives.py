from __future__ import annotations

import pytest

from dsprof.findings.finding import Status
from dsprof.rules.communication.small_collectives import SmallCollectives
from dsprof.trace.schema import BucketLayout
from tests.factories.trace import (
    assert_reached_at,
    flush,
    group,
    rank_trace,
    said,
    span,
    step,
    sync,
    zero_rank,
)

RULE = SmallCollectives()

KIB = 1 << 10


BYTES_MS = 64 * KIB * 1e-6
"""What 64 KiB cost where nobody measured it: half of the 2 ns a byte that are the most."""


def around(ms: float):
    """What a range around an estimate comes to."""
    return pytest.approx((0.75 * ms, 1.25 * ms))


def buckets(count: int, *, rank: int = 0, nbytes: int = 64 * KIB, cause: str = "full", **fields):
    """A rank whose only measured step sends `count` flushes of 1 ms."""
    numbers = range(1, count + 1)
    details = {"nbytes": nbytes, "elements": nbytes // 2, "capacity": 40_000, "cause": cause}
    details |= fields
    return rank_trace(
        rank,
        steps=[step(0, 0, 1000)],
        flushes=[flush(n, n * 2, 1, step=0, **details) for n in numbers],
        comm=[sync("all_reduce", n * 2, 1, nbytes=nbytes, step=0, flush=n) for n in numbers],
    )


def gathers(count: int, nbytes: int = 4 * KIB, **fields):
    comm = [sync("all_gather", 2 * n, 1, nbytes=nbytes, step=0) for n in range(count)]
    return rank_trace(steps=[step(0, 0, 1000)], comm=comm, **fields)


def test_buckets_that_are_too_small_fail_with_a_size():
    finding = said(RULE, buckets(100))
    assert finding.status is Status.FAIL
    assert "100 bucket flushes per step carry 64.0 KiB each" in finding.summary
    assert finding.config_patch == {"zero_optimization": {"reduce_bucket_size": 1_000_000}}
    assert finding.saving_ms_per_step == around(96 - 96 * BYTES_MS)
    assert finding.evidence[0].rows == ((100, 65_536, 40_000, 100.0),)


@pytest.mark.parametrize(
    ("elements", "advised"), [(1_200_000, 15_000_000), (12_000_000, 50_000_000)]
)
def test_a_larger_bucket_leaves_backward_to_overlap_with(elements, advised):
    """An eighth of its gradients, at most 50 million: `giant-bucket` fails from a half on."""
    (zero,) = said(RULE, buckets(100, elements=elements)).config_patch.values()
    assert zero == {"reduce_bucket_size": advised}


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, buckets(100), small_bytes=65_536, calls_per_step=100, held_share=0.1)


@pytest.mark.parametrize(
    "trace",
    [buckets(15), buckets(100, nbytes=1 << 20), buckets(12, cause="end of backward")],
    ids=["few", "large", "end of backward"],
)
def test_buckets_that_are_few_or_large_pass(trace):
    assert said(RULE, trace).status is Status.PASS


def test_a_bucket_size_that_was_never_reached_is_not_blamed():
    assert said(RULE, buckets(100, cause="end of backward")).status is Status.INFO


def test_ranks_whose_buckets_differ_are_not_added_up():
    """As in a pipeline, whose stages have other parameters: 8 buckets a rank are 8 and not 16."""
    ranks = [buckets(8, rank=rank, nbytes=64 * KIB + 16 * rank) for rank in (0, 1)]
    assert said(RULE, *ranks).status is Status.PASS
    finding = said(RULE, *ranks, calls_per_step=8)
    assert "8 bucket flushes per step" in finding.summary
    assert finding.evidence[0].rows[0][3] == pytest.approx(8.0)


def test_other_small_collectives_are_mentioned():
    finding = said(RULE, gathers(40))
    assert finding.status is Status.INFO
    assert finding.title == "Many collectives are small"
    (row,) = finding.evidence[0].rows
    assert (row[0], row[4:6]) == ("all_gather", (40.0, 4 * KIB))


def test_buffers_of_ddp_have_a_rule_of_their_own():
    told = {"step": 0, "phase": "forward", "is_async": True}
    comm = [sync("broadcast", 2 * n, 1, nbytes=4 * KIB, **told) for n in range(40)]
    one = rank_trace(comm=comm, steps=[step(0, 0, 1000)], groups={1: group(role="data")})
    assert said(RULE, one).status is Status.INFO
    one.layouts = [BucketLayout(0, 1, [1 << 20])]
    assert said(RULE, one).status is Status.PASS


@pytest.mark.parametrize(
    ("ops", "title"),
    [
        (("send", "recv"), "Many sends and receives are small"),
        (("send", "broadcast"), "Many collectives, sends and receives are small"),
    ],
)
def test_sends_and_receives_are_not_called_collectives(ops: tuple[str, ...], title: str) -> None:
    comm = [sync(ops[n % 2], 2 * n, 1, nbytes=64 * KIB, step=0) for n in range(40)]
    finding = said(RULE, rank_trace(steps=[step(0, 0, 1000)], comm=comm))
    assert finding.title == title
    assert title[len("Many ") : -len(" are small")] in finding.summary


def test_the_library_that_calls_other_small_collectives_is_named():
    def action(op, trace=None, **fields):
        comm = [sync(op, 2 * n, 1, nbytes=64 * KIB, step=0, **fields) for n in range(40)]
        return said(RULE, rank_trace(steps=[step(0, 0, 1000)], comm=comm, **(trace or {}))).action

    stages = [span("forward", 900, 950, 0, stage=stage) for stage in (0, 1)]
    unit = flush(1, 900, 1, step=0, library="FSDP2", cause="end of module")
    assert "join tensors" in action("broadcast", phase="forward")
    assert "parameters_as_bucket_view=True" in action("broadcast", phase="step")
    assert "join tensors" in action("send")
    assert "bubble" in action("send", {"spans": stages})
    assert "wrap larger modules" in action("all_gather", {"flushes": [unit]})
    tensor = {1: group(2, role="tensor")}
    beside = action("all_gather", {"flushes": [unit], "groups": tensor}, phase="forward")
    assert "Larger micro-batches send more at once." in beside


@pytest.mark.parametrize("in_forward", [True, False])
def test_activations_of_layers_cannot_be_joined(in_forward):
    """Tensor parallelism written by hand names no group; gradients are reduced in backward only."""
    comm = [
        sync("all_reduce", 2 * n, 1, nbytes=64 * KIB, step=0, phase="backward" if n > 19 else "")
        for n in range(0 if in_forward else 20, 60)
    ]
    steps, spans = [step(0, 0, 1000)], [span("backward", 40, 200, 0)]
    finding = said(RULE, rank_trace(steps=steps, spans=spans, comm=comm))
    assert ("join tensors" in finding.action) is not in_forward
    assert finding.cause.startswith("Tensor parallelism") is in_forward


def test_scalars_and_barriers_are_told_by_rules_of_their_own():
    assert said(RULE, gathers(40, nbytes=8)).status is Status.PASS
    barriers = [sync("barrier", 2 * n, 1, nbytes=0, step=0, phase="step") for n in range(40)]
    assert said(RULE, rank_trace(steps=[step(0, 0, 1000)], comm=barriers)).status is Status.PASS


def test_gathers_of_zero_3_are_told_by_rules_of_their_own():
    stage_3 = zero_rank(stage=3).engines[1]
    assert said(RULE, gathers(40, engine=stage_3)).status is Status.PASS


@pytest.mark.parametrize("fields", [{"comm": ()}, {"groups": {1: group(1)}}])
def test_nothing_between_ranks_is_not_applicable(fields):
    comm = [sync("all_reduce", n, 1, step=0, nbytes=8) for n in range(50)]
    trace = rank_trace(**{"steps": [step(0, 0, 99)], "comm": comm, **fields})
    assert said(RULE, trace).status is Status.NOT_APPLICABLE


def test_a_bucket_is_not_spared_across_micro_steps():
    trace = buckets(100)
    trace.collectives.micro_step[50:] = 1
    # 50 buckets of 32,768 elements are two of a million.
    assert said(RULE, trace).saving_ms_per_step == around(96 - 96 * BYTES_MS)


def test_buckets_are_too_small_however_many_micro_steps_reduce_them():
    """Sixteen full ones in two micro-steps would be two."""
    trace = buckets(16)
    trace.collectives.micro_step[8:] = 1
    assert said(RULE, trace).status is Status.FAIL


def ddp(count: int, **fields):
    return buckets(count, library="DDP", stage=-1, capacity=1 << 15, **fields)


def fsdp(count: int, **fields):
    given = {"library": "FSDP2", "stage": -1, "capacity": 0, "cause": "end of module", **fields}
    return buckets(count, module="blocks.0", **given)


def test_small_ddp_buckets_fail_with_its_own_setting():
    finding = said(RULE, ddp(100))
    assert finding.status is Status.FAIL
    assert "100 DDP buckets per step carry 64.0 KiB each" in finding.summary
    assert "bucket_cap_mb is 0.0625" in finding.summary
    assert "bucket_cap_mb=25" in finding.action
    assert finding.config_patch is None, "DeepSpeed's file has no such key"
    assert finding.saving_ms_per_step == around(99 - 99 * BYTES_MS)


@pytest.mark.parametrize("library", ["FSDP1", "FSDP2"])
def test_small_fsdp_units_fail_with_the_wrapping(library):
    finding = said(RULE, fsdp(40, library=library))
    assert finding.status is Status.FAIL
    assert finding.title == "FSDP units are too small"
    assert "40 FSDP reductions per step carry 64.0 KiB each" in finding.summary
    assert "fully_shard" in finding.action
    assert finding.config_patch is None


def with_gathers(trace, count: int, took: float):
    """The trace with all-gathers of its units before it reduces them."""
    gathers = [
        sync("all_gather", 300 + 2 * n, took, nbytes=64 * KIB, step=0, fetch=1 + n)
        for n in range(count)
    ]
    reductions = [
        sync("reduce_scatter", 2 * one.id, 1, nbytes=64 * KIB, step=0, flush=one.id)
        for one in trace.flushes
    ]
    return rank_trace(steps=trace.steps, flushes=trace.flushes, comm=[*gathers, *reductions])


def test_larger_fsdp_units_are_gathered_less_often_as_well():
    """Of 40 units one is left, gathered twice: 39 reductions and 78 all-gathers of 1 ms go."""
    finding = said(RULE, with_gathers(fsdp(40), 80, took=1))
    assert finding.saving_ms_per_step == around(117 - 117 * BYTES_MS)
    assert finding.evidence[0].rows[0][3:] == (40.0, 80.0)


def test_small_fsdp_units_matter_where_only_their_all_gathers_block():
    trace = with_gathers(fsdp(40), 80, took=1)
    reduced = trace.collectives.flush > 0
    trace.collectives.blocked_ns[reduced] = 0
    trace.collectives.waited_ns[reduced] = trace.collectives.wait_ns[reduced]
    assert said(RULE, trace).status is Status.FAIL


def test_fsdp_units_that_are_reduced_in_each_micro_step_are_not_too_small():
    """Ten units in four micro-steps are forty reductions, of ten modules."""
    trace = fsdp(40)
    trace.collectives.micro_step[:] = [n // 10 for n in range(40)]
    assert said(RULE, trace).title == "Many collectives are small"
    assert said(RULE, trace, calls_per_step=10).title == "FSDP units are too small"


@pytest.mark.parametrize("make", [ddp, fsdp])
def test_few_or_large_reductions_of_other_libraries_pass(make):
    assert said(RULE, make(15)).status is Status.PASS
    assert said(RULE, make(100, nbytes=1 << 20)).status is Status.PASS


def test_ddp_buckets_that_were_never_full_are_not_blamed():
    assert said(RULE, ddp(100, cause="end of backward")).status is Status.INFO


@pytest.mark.parametrize("make", [ddp, fsdp])
def test_one_rank_alone_is_not_applicable(make):
    trace = make(100)
    trace.groups[1] = group(1)
    assert said(RULE, trace).status is Status.NOT_APPLICABLE


@pytest.mark.parametrize("make", [buckets, ddp, fsdp])
@pytest.mark.parametrize("fields", [{"elements": 0}, {"elements": 0, "nbytes": 0}])
def test_flushes_that_lost_their_sizes_do_not_break_the_rule(make, fields):
    finding = said(RULE, make(100, **fields))
    assert finding.status is Status.FAIL
    assert finding.saving_ms_per_step is not None


def test_a_library_that_is_not_known_is_mentioned_only():
    assert said(RULE, buckets(100, library="elsewhere")).status is Status.INFO


def test_buckets_that_hold_nobody_are_no_mistake():
    """They run behind backward, and fewer of them would save nothing."""
    trace = buckets(100)
    trace.collectives.is_async[:] = True
    trace.collectives.blocked_ns[:] = 10_000
    trace.collectives.waited_ns[:] = trace.collectives.wait_ns + 10_000
    finding = said(RULE, trace)
    assert finding.status is Status.INFO
    assert finding.saving_ms_per_step is None
    assert finding.config_patch is None


def test_bytes_that_still_travel_are_not_saved():
    """Larger calls of the run tell what a byte costs: 64 KiB take an eighth of their 1 ms."""
    low, high = said(RULE, *map(with_large_calls, range(2))).saving_ms_per_step
    assert (low + high) / 2 == pytest.approx(96 * (1 - 1 / 8), rel=0.01)


def with_large_calls(rank):
    trace, numbers = buckets(100), range(1, 101)
    small = [sync("all_reduce", 2 * n, 1, nbytes=64 * KIB, step=0, flush=n, seq=n) for n in numbers]
    large = [
        sync("all_reduce", 300 + 50 * n, 32 + 7 / 8, nbytes=16 << 20, step=0, seq=200 + n)
        for n in range(4)
    ]
    comm = [*small, *large]
    return rank_trace(rank, steps=trace.steps, flushes=trace.flushes, comm=comm)
