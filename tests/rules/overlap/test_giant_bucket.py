from __future__ import annotations

import pytest

from dsprof.findings.finding import Status
from dsprof.rules.overlap.giant_bucket import GiantBucket
from dsprof.trace.schema import BucketLayout
from tests.factories.device_run import device_rank
from tests.factories.trace import (
    assert_reached_at,
    captured,
    engine,
    flush,
    group,
    header,
    rank_trace,
    said,
    span,
    step,
    sync,
)

RULE = GiantBucket()

MIB = 1 << 20


def ranks(*blocked_ms: float, buckets=(64,), blocked_from=60, **fields):
    """Ranks that reduce buckets of so many MiB after a backward of 30 ms, in steps of 100 ms."""
    return [_rank(rank, ms, buckets, blocked_from, **fields) for rank, ms in enumerate(blocked_ms)]


def _rank(
    rank,
    blocked_ms,
    buckets,
    at,
    library="DDP",
    capacity_mib=1000,
    config=None,
    op="all_reduce",
    **given,
):
    steps, comm, flushes, spans = [], [], [], []
    each = blocked_ms / len(buckets)
    for number in range(6):
        start = 100 * number
        steps.append(step(number, start, start + 100))
        spans.append(span("backward", start + 30, start + 60, number))
        for i, mib in enumerate(buckets):
            key, nbytes = 1 + number * len(buckets) + i, int(mib * MIB)
            begin = start + at + i * each
            told = {"step": number, "phase": "backward", "nbytes": nbytes}
            owner = 0 if library is None else key
            comm.append(sync(op, begin, each, flush=owner, **told))
            details = {"elements": nbytes // 4, "capacity": capacity_mib * MIB // 4, **told}
            details |= {"library": library or "", "module": "", "parameters": 9, **given}
            flushes.append(flush(key, begin, each, **details))
    traces = {"steps": steps, "spans": spans, "flushes": flushes if library is not None else []}
    return rank_trace(rank, comm=comm, engine=config, **traces)


def test_a_giant_of_ddp_fails_with_its_argument():
    finding = said(RULE, *ranks(20, 20))
    assert finding.status is Status.FAIL
    assert "bucket_cap_mb is 1000, so one reduction of 64.0 MiB carries 100 %" in finding.summary
    assert "bucket_cap_mb=8" in finding.action
    assert finding.config_patch is None
    assert finding.saving_ms_per_step == pytest.approx((10 * 7 / 8, 20 * 7 / 8))
    assert finding.evidence[0].rows == (("1", 64 * MIB, 1.0, 8, 20.0, 30.0),)


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(RULE, *ranks(20, 20), giant_bytes=64 * MIB, giant_share=1.0, held_share=0.2)


def test_no_more_is_hidden_than_backward_computes():
    low, high = said(RULE, *ranks(40, 40)).saving_ms_per_step
    assert high == pytest.approx(30 * 7 / 8)
    assert low == pytest.approx(high / 2)


def test_what_is_waited_for_a_late_rank_is_not_hidden():
    late = said(RULE, *ranks(20, 6))
    assert late.saving_ms_per_step == (pytest.approx(2.625), pytest.approx(5.25))
    assert said(RULE, *ranks(20, 2)).status is Status.PASS


def test_a_program_that_reduces_by_itself_fails():
    finding = said(RULE, *ranks(20, 20, library=None))
    assert finding.status is Status.FAIL
    assert "DistributedDataParallel" in finding.action


def test_who_reduces_shards_is_not_sent_to_ddp():
    finding = said(RULE, *ranks(20, 20, library=None, op="reduce_scatter"))
    assert finding.status is Status.FAIL
    assert "DistributedDataParallel" not in finding.action
    assert finding.fix == "Reduce from hooks of the parameters"


@pytest.mark.parametrize("library", ["FSDP1", "FSDP2"])
def test_one_unit_of_fsdp_fails(library):
    unit = {"library": library, "module": "(root)", "parameters": 9}
    finding = said(RULE, device_rank(0, **unit), device_rank(1, **unit))
    assert finding.status is Status.FAIL
    assert "(root)" in finding.summary
    assert "fully_shard" in finding.action


@pytest.mark.parametrize("library", ["FSDP1", "FSDP2"])
def test_on_a_cpu_fsdp_overlaps_nothing_however_it_is_wrapped(library):
    finding = said(RULE, *ranks(20, 20, library=library, module="(root)"))
    assert finding.status is Status.NOT_APPLICABLE


def test_a_hook_of_ddp_that_reduces_otherwise_is_no_program_without_ddp():
    made = ranks(20, 20, library=None)
    for trace in made:
        trace.layouts = [BucketLayout(0, 1, [64 * MIB])]
    assert said(RULE, *made).status is Status.PASS


@pytest.mark.parametrize(
    "fields",
    [
        {"capacity_mib": 25},
        {"buckets": (4,)},
        {"buckets": (16, 16, 16, 16)},
        {"parameters": 1},
        {"library": "elsewhere"},
    ],
)
def test_what_is_no_giant_passes(fields):
    assert said(RULE, *ranks(20, 20, **fields)).status is Status.PASS


def test_what_costs_little_passes_with_its_figures():
    finding = said(RULE, *ranks(3, 3))
    assert finding.status is Status.PASS
    assert "3.00 ms (3 %)" in finding.summary


def test_zero_on_a_cpu_is_by_design():
    run = ranks(20, 20, library="", config=engine(2))
    assert said(RULE, *run).status is Status.NOT_APPLICABLE


def test_zero_on_a_device_gets_a_patch():
    finding = said(RULE, device_rank(engine=engine(2)))
    assert finding.status is Status.FAIL
    assert finding.config_patch == {
        "zero_optimization": {"reduce_bucket_size": 4_194_304, "overlap_comm": True}
    }


def test_a_patch_sets_what_would_keep_smaller_buckets_from_overlapping():
    finding = said(RULE, device_rank(engine=engine(2, contiguous_gradients=False)))
    zero = finding.config_patch["zero_optimization"]
    assert (zero["overlap_comm"], zero["contiguous_gradients"]) == (True, True)
    assert "Set contiguous_gradients to true, too" in finding.action
    third = said(RULE, device_rank(engine=engine(3, contiguous_gradients=False))).config_patch
    assert "contiguous_gradients" not in third["zero_optimization"]


def test_a_device_hides_no_more_than_it_computes_whatever_the_host_does():
    """It computes 20 ms of each 100 ms; the host is in backward for 30 ms."""
    finding = said(RULE, device_rank(engine=engine(2), blocked_ms=80))
    assert finding.saving_ms_per_step == pytest.approx((10 * 7 / 8 / 2, 10 * 7 / 8))


@pytest.mark.parametrize(
    ("gathered_ms", "hidden_ms"),
    [
        (0, 40 * 7 / 8 - 20),  # as many bytes as those of gradients, all behind computation
        (8, 20 * 7 / 8),
        (12, None),  # smaller buckets would be in the way
    ],
)
def test_a_link_that_all_gathers_in_backward_use_hides_less(gathered_ms, hidden_ms):
    finding = said(RULE, device_rank(engine=engine(3), gathered_ms=gathered_ms))
    saving = finding.saving_ms_per_step
    assert saving == (hidden_ms and pytest.approx((hidden_ms / 2, hidden_ms)))
    assert finding.status is (Status.FAIL if saving else Status.INFO)
    assert finding.action.startswith("Hide these all-gathers first") is not bool(saving)
    assert (finding.fix == "Prefetch parameters first") is not bool(saving)
    assert bool(finding.config_patch) is bool(saving)


def test_smaller_units_of_fsdp_hide_all_gathers_as_well():
    unit = {"library": "FSDP2", "module": "(root)", "parameters": 9}
    finding = said(RULE, device_rank(gathered_ms=12, **unit))
    assert (finding.status, finding.saving_ms_per_step) == (Status.FAIL, None)


def test_all_gathers_beside_gradients_of_unknown_size_do_not_break_the_rule() -> None:
    trace = device_rank(engine=engine(3), gathered_ms=12)
    rows = trace.collectives
    rows.nbytes[rows.flush > 0] = 0
    assert said(RULE, trace).status is Status.FAIL


def test_without_a_backward_phase_nothing_is_known_to_hide_behind() -> None:
    traces = ranks(20, 20)
    for trace in traces:
        trace.spans = []
    finding = said(RULE, *traces)
    assert (finding.status, finding.saving_ms_per_step) == (Status.FAIL, None)


def test_all_gathers_in_forward_leave_the_link_to_backward():
    trace = device_rank(engine=engine(3), gathered_ms=12)
    rows = trace.collectives
    rows.words.append("forward")
    rows.phase[rows.of_families({"all_gather"})] = rows.code("forward")
    assert said(RULE, trace).saving_ms_per_step


def test_a_small_model_is_not_divided_into_more_buckets_than_advised():
    """8 MiB in bf16 are four buckets of a million elements and the rest in a fifth."""
    finding = said(RULE, device_rank(engine=engine(2), mib=8))
    assert finding.config_patch["zero_optimization"]["reduce_bucket_size"] == 1_000_000
    assert finding.evidence[0].rows[0][3] == 5


def test_a_release_that_must_not_overlap_is_left_first():
    trace = device_rank(engine=engine(2))
    trace.header.versions["deepspeed"] = "0.18.9"
    assert "Upgrade to DeepSpeed 0.19.0 or later first" in said(RULE, trace).action


def test_without_times_of_the_device_nothing_is_known_to_cost():
    (trace,) = ranks(20, library="", config=engine(2))
    trace.header = header(device="cuda", backend="nccl")
    assert said(RULE, trace).status is Status.INFO


def test_stage_0_has_no_setting():
    run = ranks(20, 20, library="", capacity_mib=0, config=engine(0))
    assert said(RULE, *run).status is Status.PASS


def test_asynchronous_reductions_by_hand_are_no_giant():
    run = ranks(20, 20, library=None)
    for trace in run:
        trace.collectives.is_async[:] = True
    assert said(RULE, *run).status is Status.PASS


def test_nothing_between_ranks_is_not_applicable_and_counters_do_not_tell():
    (alone,) = ranks(20)
    alone.groups = {1: group(1)}
    assert said(RULE, alone).status is Status.NOT_APPLICABLE
    assert said(RULE, captured(window=range(0), steps=8)).status is Status.UNKNOWN


@pytest.mark.parametrize("fields", [{"elements": 0}, {"elements": 0, "nbytes": 0}])
def test_flushes_that_lost_their_sizes_do_not_break_the_rule(fields):
    for library in ("DDP", "FSDP2"):
        finding = said(RULE, *ranks(20, 20, library=library, **fields))
        assert finding.status in (Status.FAIL, Status.PASS, Status.NOT_APPLICABLE)
    device = ranks(20, library="", config=engine(2), **fields)
    device[0].header = header(device="cuda", backend="nccl")
    assert said(RULE, *device, giant_bytes=0, giant_share=0).status is Status.INFO
