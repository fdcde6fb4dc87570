from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsprof.analysis.summarise import summarise
from dsprof.environment import EnvSnapshot
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.rules.memory.allocator_fragmentation import AllocatorFragmentation
from dsprof.rules.runner import judge
from dsprof.trace.device_counters import DEVICE_TOTAL, PEAK_RESERVED, RESERVED, RETRIES, STUCK
from dsprof.trace.run import find_run
from tests.factories import snapshot as make
from tests.factories.memory import on_device
from tests.factories.trace import assert_reached_at, engine, rank_trace, said

RULE = AllocatorFragmentation()

GIB = 1 << 30


def counters(stuck: float, reserved: float = 20, retries: int = 0) -> dict[str, int]:
    return {STUCK: int(stuck * GIB), RESERVED: int(reserved * GIB), RETRIES: retries}


def test_much_memory_in_fragments_fails_and_names_the_rank():
    finding = said(RULE, on_device(counters(0.1)), on_device(counters(6), rank=1))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert finding.ranks == (1,)
    assert "6.00 GiB of 20.0 GiB" in finding.summary
    assert "expandable_segments" in finding.action
    assert finding.evidence[0].rows == ((1, 6 << 30, 20 << 30, 0.3, 0),)


def test_rocm_is_told_what_it_does_not_ignore() -> None:
    trace = on_device(counters(6), environment=EnvSnapshot(versions={"hip": "7.2.0"}))
    assert "max_split_size_mb:128 on every rank" in said(RULE, trace).action


def test_of_several_ranks_the_worst_is_in_the_summary():
    stuck = [on_device(counters(gib), rank=rank) for rank, gib in enumerate((6, 9, 7))]
    finding = said(RULE, *stuck)
    assert finding.ranks == (0, 1, 2)
    assert "9.00 GiB of 20.0 GiB reserved on rank 1" in finding.summary


def test_its_thresholds_are_reached_at_their_value():
    assert_reached_at(
        RULE,
        on_device(counters(0.1)),
        on_device(counters(6), rank=1),
        stuck_share=0.3,
        stuck_bytes=6 << 30,
    )


def test_advice_names_the_settings_in_force_and_not_one_that_is_on_already():
    variables = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    trace = on_device(counters(6), engine=engine(2), environment=EnvSnapshot(variables=variables))
    action = said(RULE, trace).action
    assert action.startswith("expandable_segments is already on")
    assert "reduce_bucket_size (now 500,000,000)" in action
    variables["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:False"
    assert said(RULE, trace).action.startswith("Set PYTORCH_CUDA_ALLOC_CONF")


def test_retries_after_the_first_step_are_severe():
    finding = said(RULE, on_device(counters(1, retries=2), counters(1, retries=5)))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert finding.title == "Device allocations were retried"
    assert "up to 3 times" in finding.summary
    stuck = said(RULE, on_device(counters(6, retries=2), counters(6, retries=5)))
    assert "freed in a different order" in stuck.cause


@pytest.mark.parametrize(("steps", "severity"), [(90, Severity.HIGH), (200, Severity.MEDIUM)])
def test_a_full_device_is_not_called_fragmented_and_a_rare_retry_not_severe(steps, severity):
    samples = [counters(0.1, retries=tried) for tried in (*[0] * steps, 1)]
    finding = said(RULE, on_device(*samples))
    assert (finding.status, finding.severity) == (Status.FAIL, severity)
    assert "the device was probably full" in finding.cause


@pytest.mark.parametrize(
    ("total", "peak", "status"),
    [(26, 20, Status.INFO), (25, 20, Status.FAIL), (40, 35, Status.FAIL)],
)
def test_fragments_beside_as_much_memory_that_was_never_reserved_do_no_harm(total, peak, status):
    told = {**counters(6), DEVICE_TOTAL: total * GIB, PEAK_RESERVED: peak * GIB}
    roomy = {**counters(6), DEVICE_TOTAL: 40 * GIB}
    finding = said(RULE, on_device(roomy), on_device(told, rank=1))
    assert finding.status is status
    assert finding.action.startswith("No change is needed") == (status is Status.INFO)


def test_as_many_retries_as_the_threshold_fail():
    retrying = on_device(counters(1, retries=2), counters(1, retries=5))
    assert_reached_at(RULE, retrying, retries=3)


@pytest.mark.parametrize(
    "samples",
    [
        (counters(1.1),),
        (counters(0.9, reserved=2),),
        (counters(0, retries=9), counters(0, retries=9)),
        (counters(9), counters(0.1)),
    ],
    ids=["small share", "few bytes", "retries at start", "recovered"],
)
def test_a_healthy_allocator_passes(samples):
    assert said(RULE, on_device(*samples)).status is Status.PASS


def test_a_cpu_run_has_no_device_allocator():
    assert said(RULE, rank_trace()).status is Status.NOT_APPLICABLE


@pytest.mark.parametrize("samples", [(), (None,), ({RESERVED: GIB},), ({STUCK: GIB},)])
def test_missing_counters_are_unknown(samples):
    assert said(RULE, on_device(*samples)).status is Status.UNKNOWN


def snapshot(tmp_path: Path, *segments: dict[str, Any], oom: float = 0, free: float = 0) -> Finding:
    """Judge one snapshot; sizes of blocks in MiB."""
    history = [make.event("oom", 0, oom, device_free=int(free * make.MIB))] if oom else []
    path = make.write(tmp_path / "rank3.pickle", segments, history)
    [finding] = judge(summarise(find_run([path])), [RULE])
    return finding


def test_a_snapshot_of_holes_fails(tmp_path):
    finding = snapshot(tmp_path, make.segment(3000, -2000), make.segment(-5000))
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.MEDIUM)
    assert finding.ranks == (3,)
    assert "1.95 GiB of 9.77 GiB reserved on rank 3 (20 %) are stuck" in finding.summary


def test_cached_segments_are_no_fragments(tmp_path):
    finding = snapshot(tmp_path, make.segment(3000, -100), make.segment(-20000))
    assert finding.status is Status.INFO
    assert finding.title == "Device memory shows little fragmentation"
    assert "19.5 GiB more are free and can be returned" in finding.summary


def test_a_request_that_would_have_fit_is_severe(tmp_path):
    finding = snapshot(tmp_path, make.segment(900, -600), oom=512, free=10)
    assert (finding.status, finding.severity) == (Status.FAIL, Severity.HIGH)
    assert finding.confidence == "high"
    assert "a request of 512 MiB failed" in finding.summary


def test_a_request_that_needs_what_was_free_as_well_leaves_two_readings(tmp_path):
    finding = snapshot(tmp_path, make.segment(900, -300), oom=512, free=300)
    assert (finding.status, finding.confidence) == (Status.FAIL, "low")
    assert "with 300 MiB free on the device" in finding.summary
    assert "The cause is uncertain" in finding.cause


def test_a_request_that_the_device_had_room_for_met_a_limit(tmp_path: Path) -> None:
    finding = snapshot(tmp_path, make.segment(900, -20), oom=512, free=4000)
    assert finding.status is Status.FAIL
    assert finding.title == "A process reached its device memory limit"
    assert "expandable_segments" not in finding.action


def test_a_limit_is_blamed_with_much_stuck_too_unless_that_would_have_sufficed(
    tmp_path: Path,
) -> None:
    limited = snapshot(tmp_path, make.segment(3000, -2000), oom=3000, free=4000)
    assert limited.title == "A process reached its device memory limit"
    both = snapshot(tmp_path, make.segment(3000, -2000), oom=1500, free=4000)
    assert (both.status, both.confidence) == (Status.FAIL, "low")
    assert "Or a limit of the process" in both.cause


def test_a_snapshot_taken_after_memory_was_freed_proves_no_lack(tmp_path):
    history = [make.event("oom", 0, 512, device_free=0), make.event("free_requested", 1, 900)]
    path = make.write(tmp_path / "rank3.pickle", [make.segment(900, -100)], history)
    [finding] = judge(summarise(find_run([path])), [RULE])
    assert finding.title == "The device ran out of memory"
    assert finding.confidence == "low"


def test_a_request_that_would_not_have_fit_is_over_commitment(tmp_path):
    finding = snapshot(tmp_path, make.segment(900, -100), oom=512, free=10)
    assert finding.status is Status.INFO
    assert finding.title == "The device ran out of memory; fragmentation is not the cause"
    assert "Shard, offload" in finding.action
