from __future__ import annotations

from dataclasses import replace

import pytest

from dsprof.analysis.aggregates.overlap import Overlap
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.rank import sampling
from dsprof.findings.finding import Severity, Status
from dsprof.rules.overlap.low_comm_overlap import LowCommOverlap
from dsprof.trace.background import mark_background
from tests.factories import device, kineto
from tests.factories.device_run import device_rank
from tests.factories.trace import (
    assert_reached_at,
    captured,
    engine,
    fetch,
    header,
    issued,
    ns,
    rank_trace,
    said,
    span,
    step,
    summary,
    sync,
    zero_rank,
)

RULE = LowCommOverlap()


def gathering(wait: float, **fields):
    """ZeRO-3 ranks whose gathers are in flight for 20 ms of each 100 ms, waited for from `wait`."""

    def gather(number, start):
        times = {"wait": start + wait, "waited": start + 20}
        return [issued("all_gather", start, start + 20, **times, step=number, fetch=1)]

    return zero_rank(stage=3, op="reduce_scatter", comm_ms=1, extra=gather, **fields)


def test_barriers_and_threads_beside_the_training_have_nothing_to_hide():
    """A thread averages parameters while the training computes, and barriers end its epochs."""
    comm = [sync("all_reduce", 100 * n, 60, step=n, phase="forward", thread=3) for n in range(6)]
    comm += [sync("barrier", 100 * n + 90, 9, step=n, nbytes=0, thread=1) for n in range(6)]
    trace = rank_trace(
        comm=comm,
        spans=[span("forward", 100 * n, 100 * n + 90, n, thread=1) for n in range(6)],
        steps=[step(n, 100 * n, 100 * (n + 1)) for n in range(6)],
    )
    mark_background(trace)
    assert said(RULE, trace).status is Status.NOT_APPLICABLE
    trace.collectives.is_background[:] = False
    assert said(RULE, trace).status is Status.INFO


def test_gloo_on_a_gpu_is_the_first_cause():
    trace = gathering(wait=2)
    run = summary(trace)
    trace.header = header(device="cuda")  # after what is measured on the host: the same waits
    run = run.with_part(summary(trace)[Run])
    (finding,) = RULE.check(run, RULE.thresholds)
    assert "gloo" in finding.cause
    assert finding.action.startswith("Use the backend nccl")


def test_hidden_communication_passes():
    assert said(RULE, gathering(wait=17)).status is Status.PASS


def test_waits_that_no_setting_explains_are_mentioned():
    finding = said(RULE, gathering(wait=2))
    assert finding.status is Status.INFO
    assert "10 % of asynchronous communication is hidden" in finding.summary
    assert "18.0 ms" in finding.summary
    assert "is for parameters, all_gather: it starts 2.00 ms before the wait," in finding.summary
    assert "in flight for 20.0 ms" in finding.summary
    assert finding.evidence[0].rows == (
        ("synchronous", None, 1.0),
        ("asynchronous, waited for", ns(18), 1.0),
        ("in flight, at least", ns(20), 1.0),
        ("in flight, at most", ns(20), 1.0),
    )
    assert finding.evidence[1].rows[0][:2] == ("parameters, all_gather", 1.0)


def test_the_share_of_a_step_is_the_same_where_a_sample_of_steps_is_kept(monkeypatch):
    whole = said(RULE, gathering(wait=2, steps=1000)).summary
    assert "(18 %)" in whole
    monkeypatch.setattr(sampling, "_MOST_STEPS", 100)
    assert said(RULE, gathering(wait=2, steps=1000)).summary == whole


@pytest.mark.parametrize(
    ("stage", "device", "is_told"), [(3, True, True), (3, False, False), (2, True, False)]
)
def test_on_a_device_gathers_of_stage_3_wait_for_reductions(stage, device, is_told):
    trace = gathering(wait=2)
    trace.engines[1].effective["zero_optimization"]["stage"] = stage
    run = summary(trace)
    run = run.with_part(replace(run[Overlap], on_device=device))
    (finding,) = RULE.check(run, RULE.thresholds)
    assert (finding.status, "share a process group" in finding.cause) == (Status.INFO, is_told)


@pytest.mark.parametrize(("overlaps", "is_offered"), [(True, False), (False, True)])
def test_overlap_is_advised_only_where_it_is_not_in_force(overlaps: bool, is_offered: bool):
    """It is the default of ZeRO-3."""
    trace = gathering(wait=2)
    trace.engines[1].effective["zero_optimization"]["overlap_comm"] = overlaps
    run = summary(trace)
    run = run.with_part(replace(run[Overlap], on_device=True))
    (finding,) = RULE.check(run, RULE.thresholds)
    assert finding.action.startswith("Start collectives earlier: prefetch, use smaller buckets")
    assert ("set overlap_comm to true" in finding.action) is is_offered


def test_prefetching_switched_off_fails():
    finding = said(RULE, gathering(wait=2, zero=OFF))
    assert finding.status is Status.FAIL
    assert finding.config_patch == {
        "zero_optimization": {"stage3_prefetch_bucket_size": 50_000_000}
    }
    assert finding.saving_ms_per_step is None, "nobody saw how many fetches there are"
    totals, kinds = (table.rows for table in finding.evidence)
    assert [row[1:] for row in totals] == [
        (None, 1.0),
        (18_000_000, 1.0),
        (20_000_000, 1.0),
        (20_000_000, 1.0),
    ]
    assert [row[1:] for row in kinds] == [
        (1.0, 1 << 20, 18.0, 2.0, 20.0),
        (1.0, 1 << 20, 1.0, None, 1.0),
    ]


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, gathering(wait=2, zero=OFF), exposed_share=0.18)


OFF = {"stage3_prefetch_bucket_size": 0}


def fetching(count: int, elements: int = 1000):
    """`count` fetches in the forward of each of six steps, and as many in backward."""
    details = {"elements": elements, "kind": "fetch"}
    return [
        fetch(1 + n, 100 * number, 1, step=number, phase=phase, **details)
        for number in range(6)
        for phase in ("forward", "backward")
        for n in range(count)
    ]


def test_prefetching_hides_all_fetches_but_the_first():
    finding = said(RULE, gathering(wait=2, zero=OFF, fetches=fetching(4)))
    hidden_ms = 18 * 7 / 8
    assert finding.saving_ms_per_step == pytest.approx((hidden_ms / 2, hidden_ms))


def test_the_prefetch_that_is_advised_fits_the_model():
    finding = said(RULE, gathering(wait=2, zero=OFF, fetches=fetching(4)))
    assert finding.config_patch == {"zero_optimization": {"stage3_prefetch_bucket_size": 2000}}
    giant = said(RULE, gathering(wait=2, zero=OFF, fetches=fetching(4, elements=10**9)))
    assert giant.config_patch == {"zero_optimization": {"stage3_prefetch_bucket_size": 50_000_000}}


@pytest.mark.parametrize(("live", "is_raised"), [(0, True), (1999, True), (2000, False)])
def test_a_prefetch_is_advised_with_the_room_that_it_needs(live, is_raised):
    zero = OFF | {"stage3_max_live_parameters": live}
    finding = said(RULE, gathering(wait=2, zero=zero, fetches=fetching(4)))
    patch = finding.config_patch["zero_optimization"]
    raised = {"stage3_max_live_parameters": 1_000_000_000} if is_raised else {}
    assert patch == {"stage3_prefetch_bucket_size": 2000} | raised
    assert ("leaves no room" in finding.action) == is_raised


def test_what_is_computed_limits_what_can_be_hidden():
    """The phases fill 90 ms of a step, of which all but 4 are spent in waits."""
    trace = gathering(wait=2, zero=OFF, fetches=fetching(4), spans=[span("forward", 0, 1, 0)])
    finding = said(RULE, trace)
    assert finding.saving_ms_per_step is None, "nothing was computed in the measured steps"
    short = [span("forward", 100 * n + 30, 100 * n + 36, n) for n in range(6)]
    finding = said(RULE, gathering(wait=2, zero=OFF, fetches=fetching(4), spans=short))
    assert finding.saving_ms_per_step == pytest.approx((3, 6))


def test_waits_that_are_short_pass_however_little_is_hidden():
    assert said(RULE, gathering(wait=2), exposed_share=0.2).status is Status.PASS


def test_synchronous_by_design_is_informed():
    finding = said(RULE, zero_rank())
    assert finding.status is Status.INFO
    assert "has no effect here" not in finding.summary
    assert finding.evidence[0].rows[0] == ("synchronous", None, 1.0)
    (row,) = finding.evidence[1].rows
    assert row[0] == "the last bucket of a backward, all_reduce in backward"


def test_calls_of_fsdp_are_not_the_program_s():
    mine = said(RULE, zero_rank(engine=None))
    assert "async_op=True" in mine.action
    unit = {"library": "FSDP2", "module": "layers.0", "elements": 10}
    finding = said(RULE, zero_rank(engine=None, fetches=[fetch(9, 310, 1, step=3, **unit)]))
    assert finding.action.startswith("No change is needed")
    assert "FSDP2 communicates by synchronous calls" in finding.cause


def test_overlap_asked_for_where_it_cannot_act_is_an_intent_missed():
    finding = said(RULE, zero_rank(zero={"overlap_comm": True}))
    assert "overlap_comm is true" in finding.summary


@pytest.mark.parametrize(
    "trace",
    [
        zero_rank(head=header(device="cuda", backend="nccl")),
        zero_rank(extra=lambda n, t: [issued("all_reduce", t, t + 9, step=n)]),
        zero_rank(extra=lambda n, t: [issued("send", t, None, wait=t, waited=t + 1, step=n)]),
    ],
    ids=["device", "unwaited", "no end"],
)
def test_what_was_not_measured_is_unknown(trace):
    assert said(RULE, trace).status is Status.UNKNOWN


def test_one_call_without_a_wait_is_not_several():
    run = summary(gathering(wait=2))
    run = run.with_part(replace(run[Overlap], unwaited_calls=1))
    (finding,) = RULE.check(run, RULE.thresholds)
    assert finding.summary.startswith("Unknown: 1 asynchronous collective without")


def test_no_collectives_are_not_applicable():
    trace = rank_trace(steps=[step(n, n * 9, n * 9 + 9) for n in range(6)])
    assert said(RULE, trace).status is Status.NOT_APPLICABLE


def test_a_pass_says_what_is_hidden_and_what_is_not():
    finding = said(RULE, gathering(wait=11), overlap=0.5)
    assert finding.status is Status.PASS
    assert finding.summary.startswith(
        "55 % of asynchronous communication is hidden; the exposed part"
    )
    assert "9.00 ms per step (9 %)" in finding.summary


def test_an_overlap_on_both_sides_of_the_threshold_is_unknown():
    def gather(number, start):
        times = {"wait": start + 15, "waited": start + 22, "pending_ns": ns(start + 4)}
        return [issued("all_gather", start, start + 20, **times, step=number)]

    finding = said(RULE, zero_rank(comm_ms=1, extra=gather))
    assert finding.status is Status.UNKNOWN
    assert "known only within intervals. At most 65 %" in finding.summary


def test_counters_alone_do_not_tell():
    assert said(RULE, captured(window=range(0))).status is Status.UNKNOWN


def profiled(*compute_ms: float, world_size: int = 2):
    """Ranks whose collective begins when they have computed, ends at 95, and hides nothing."""
    for number, compute in enumerate(compute_ms):
        events = []
        for one in range(4):
            start = 100.0 * one
            events += [kineto.step(one, start, 100), kineto.kernel(kineto.GEMM, start, compute)]
            events.append(kineto.collective(start + compute, 95 - compute))
        yield device.rank(events, number, world_size)


def test_transfers_that_nothing_hides_fail_on_a_device():
    finding = said(RULE, *profiled(80, 80))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert finding.confidence == "medium"
    assert "0 % of communication is hidden; the exposed part takes 15.0 ms per step" in (
        finding.summary
    )
    assert said(RULE, *profiled(40, 40)).severity is Severity.HIGH


def test_thresholds_of_a_device_are_reached_at_their_value():
    assert_reached_at(RULE, *profiled(80, 80), failing_share=0.15, severe_share=0.15)


def test_one_rank_of_several_is_less_sure():
    finding = said(RULE, *profiled(80))
    assert (finding.status, finding.confidence) == (Status.FAIL, "low")
    assert "files of ranks are missing" in finding.cause


def test_ranks_that_recorded_other_steps_are_not_called_missing():
    ranks = []
    for number in range(2):
        events = []
        for one in range(10 * number, 10 * number + 8):
            at = 100.0 * one
            work = [kineto.kernel(kineto.GEMM, at, 80), kineto.collective(at + 80, 15)]
            events += [kineto.step(one, at, 100.0), *work]
        ranks.append(device.rank(events, number))
    finding = said(RULE, *ranks)
    assert (finding.status, finding.confidence) == (Status.FAIL, "low")
    assert "too few of the collectives are recorded on all ranks" in finding.cause


@pytest.mark.parametrize("offered", [False, True])
def test_what_the_next_layer_needs_at_once_cannot_be_asynchronous(offered):
    with_key = {"engine": engine(3, overlap_comm=False)} if offered else {}
    ranks = [device_rank(n, **with_key) for n in range(2)]
    for trace in ranks:
        trace.groups[1].role = "tensor"
        trace.flushes = []
        trace.collectives.flush[:] = 0
    finding = said(RULE, *ranks)
    assert finding.status is Status.INFO
    assert "async_op" not in finding.action
    assert ("overlap_comm" in finding.action) is offered
    first = "A stream" if offered else "Most of it is in tensor parallel groups: the next layer"
    assert finding.cause.startswith(first)


def test_waiting_for_a_late_rank_is_no_lack_of_overlap():
    finding = said(RULE, *profiled(50, 93))
    assert finding.status is Status.INFO
    assert ", mostly for rank 1." in finding.cause


@pytest.mark.parametrize(
    ("config", "status", "is_offered"),
    [
        (engine(3, overlap_comm=False), Status.FAIL, True),
        (engine(3, overlap_comm=True), Status.FAIL, False),
        (engine(2, overlap_comm=False), Status.INFO, True),  # unhidden-reduction judges it
        (None, Status.FAIL, False),
    ],
    ids=["stage 3", "already on", "stage 2", "no engine"],
)
def test_calls_on_the_stream_that_computes_cannot_overlap(config, status, is_offered):
    finding = said(RULE, *(device_rank(n, engine=config) for n in range(2)))
    assert finding.status is status
    assert finding.summary == (
        "All collectives run on the stream that computes, and cannot overlap with it: 20 % of the "
        "step is exposed."
    )
    assert ("overlap_comm" in finding.action) is is_offered
    assert ("async_op=True" in finding.action) is not is_offered
