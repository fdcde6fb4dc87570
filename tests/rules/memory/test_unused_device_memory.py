from __future__ import annotations

import pytest

from dsprof.findings.finding import Status
from dsprof.rules.memory.unused_device_memory import UnusedDeviceMemory
from dsprof.trace.device_counters import DEVICE_TOTAL, PEAK_RESERVED, RETRIES
from tests.factories.device_run import device_rank
from tests.factories.memory import GIB, on_device
from tests.factories.trace import assert_reached_at, engine, header, rank_trace, said, zero_rank

RULE = UnusedDeviceMemory()

BILLION = 10**9


def run(peak: float, stage: int = 3, parameters: int = BILLION, rank: int = 0, **fields):
    config = engine(stage, fields.pop("accumulation", 1), **fields)
    config.parameters = parameters
    trace = zero_rank(rank, stage=stage, head=header(rank, device="cuda", backend="nccl"))
    trace.engines = {1: config}
    counters = {DEVICE_TOTAL: 80 * GIB, PEAK_RESERVED: int(peak * GIB)}
    trace.memory = on_device(counters).memory
    return trace


def test_room_for_a_lower_stage_is_known():
    finding = said(RULE, run(30), run(40, rank=1))
    assert finding.status is Status.INFO
    assert "40.0 GiB of 80.0 GiB were never reserved on rank 1" in finding.summary
    assert "ZeRO-2 instead of ZeRO-3 (needs about 2.79 GiB)" in finding.action
    assert finding.config_patch == {"zero_optimization": {"stage": 2, "overlap_comm": True}}
    assert finding.evidence[0].rows == (
        ("ZeRO-2 instead of ZeRO-3", 3 * 10**9, 32 << 30, True),
        ("reduce_bucket_size of 1,000,000,000", 10**9, 32 << 30, True),
    )


def test_the_overlap_of_stage_3_is_kept_unless_it_was_switched_off():
    """At stage 2 it is off by default, and has a second bucket."""
    finding = said(RULE, run(30, overlap_comm=False))
    assert finding.config_patch == {"zero_optimization": {"stage": 2}}
    assert finding.evidence[0].rows[0][1] == 2 * 10**9
    early = run(30)
    early.header.versions["deepspeed"] = "0.18.9"  # its overlap is wrong at stage 2
    assert said(RULE, early).config_patch == {"zero_optimization": {"stage": 2}}


@pytest.mark.parametrize(
    ("stage", "held", "patch"),
    [
        (2, {"blocked_ms": 6}, {"stage": 1}),
        (2, {"blocked_ms": 4}, None),
        (3, {"gathered_ms": 6}, {"stage": 2, "overlap_comm": True}),
        (3, {"gathered_ms": 4}, None),
    ],
)
def test_a_lower_stage_is_advised_only_where_the_step_waits_for_what_it_spares(stage, held, patch):
    trace = device_rank(**held, engine=engine(stage, 4))
    trace.memory = on_device({DEVICE_TOTAL: 80 * GIB, PEAK_RESERVED: 30 * GIB}).memory
    finding = said(RULE, trace)
    assert finding.config_patch == (patch and {"zero_optimization": patch})
    assert finding.evidence[0].rows[0][0] == f"ZeRO-{stage - 1} instead of ZeRO-{stage}"


def test_half_of_the_device_is_half():
    assert_reached_at(RULE, run(30), run(40, rank=1), free_share=0.5)


def test_accumulation_at_stage_2_could_be_stage_1():
    assert said(RULE, run(30, 2, accumulation=4)).config_patch == {
        "zero_optimization": {"stage": 1}
    }
    assert said(RULE, run(30, 2)).config_patch is None


@pytest.mark.parametrize(
    "trace",
    [run(30, parameters=40 * BILLION), run(30, zero_hpz_partition_size=2), run(30, 1)],
    ids=["too large", "hpz", "stage 1"],
)
def test_where_nothing_lower_fits_batches_may(trace):
    finding = said(RULE, trace)
    assert finding.config_patch is None
    assert "larger micro-batch" in finding.action


@pytest.mark.parametrize(
    ("offload", "patch"),
    [
        ({"device": "cpu"}, {"zero_optimization": {"stage": 2, "overlap_comm": True}}),
        ({"device": "cpu", "ratio": 0.5}, None),
        ({"device": "nvme", "nvme_path": "/nvme"}, None),
    ],
)
def test_what_stage_3_alone_can_offload_keeps_it(offload, patch):
    assert said(RULE, run(30, offload_optimizer=offload)).config_patch == patch


@pytest.mark.parametrize(("overlap", "needs"), [(False, 0.2e9), (True, 0.4e9)])
def test_room_for_a_larger_bucket_is_known_and_not_advised(overlap, needs):
    finding = said(RULE, run(30, 2, reduce_bucket_size=10**8, overlap_comm=overlap))
    assert finding.evidence[0].rows[-1][:2] == ("reduce_bucket_size of 200,000,000", needs)
    assert (finding.evidence[0].rows[-1][3], finding.config_patch) == (True, None)
    whole = said(RULE, run(30, 2, reduce_bucket_size=BILLION, overlap_comm=overlap))
    assert not whole.evidence  # it holds all gradients


def test_a_full_device_passes():
    assert said(RULE, run(30), run(60, rank=1)).status is Status.PASS


def test_it_does_not_apply_to_cpus():
    assert said(RULE, rank_trace()).status is Status.NOT_APPLICABLE


def test_without_the_size_of_the_device_it_cannot_tell():
    assert said(RULE, on_device({PEAK_RESERVED: GIB})).status is Status.UNKNOWN


def test_memory_that_was_asked_for_in_vain_was_not_unused():
    short = run(30)
    short.memory = on_device(
        {DEVICE_TOTAL: 80 * GIB, PEAK_RESERVED: 30 * GIB, RETRIES: 0},
        {DEVICE_TOTAL: 80 * GIB, PEAK_RESERVED: 30 * GIB, RETRIES: 3},
    ).memory
    assert said(RULE, short).status is Status.NOT_APPLICABLE
