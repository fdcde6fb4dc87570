"""Turns records of hooks into those of the file: relative times.

Written by `python -m dsprof.trace.generate`: edit `dsprof.trace.schema`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsprof.trace.schema import (
    BucketLayout,
    Collective,
    Copy,
    DeviceStep,
    Fetch,
    Flush,
    GroupEnd,
    Heartbeat,
    MemorySample,
    Note,
    Phase,
    RollUp,
    Stall,
    Step,
    StepTotals,
)
from dsprof.trace.scope import OUTSIDE


def file_collective(given: Any, start_ns: int) -> Collective:
    """Return a `Collective` of the file."""
    record: Collective = given.__copy__()
    record.issue_ns -= start_ns
    record.op = ""
    if record.return_ns:
        record.return_ns -= start_ns
    if record.pending_ns:
        record.pending_ns -= start_ns
    if record.done_ns:
        record.done_ns -= start_ns
    if record.wait_ns:
        record.wait_ns -= start_ns
    if record.waited_ns:
        record.waited_ns -= start_ns
    record.outputs = ()
    return record


def file_phase(given: Any, start_ns: int) -> Phase:
    """Return a `Phase` of the file."""
    return Phase(
        given.start_ns - start_ns,
        given.end_ns - start_ns,
        given.step,
        given.micro_step,
        given.engine,
        given.stage,
        "",
        0,
        False,
        OUTSIDE,
    )


def file_step(given: Any, start_ns: int) -> Step:
    """Return a `Step` of the file."""
    return Step(
        given.step,
        given.start_ns - start_ns,
        given.end_ns - start_ns,
        given.micro_steps,
        given.source,
        given.engine,
        given.taken_before,
    )


def file_flush(given: Any, start_ns: int) -> Flush:
    """Return a `Flush` of the file."""
    return Flush(
        given.id,
        given.stage,
        given.elements,
        given.start_ns - start_ns,
        given.end_ns - start_ns,
        given.capacity,
        given.nbytes,
        given.dtype,
        given.parameters,
        given.cause,
        given.slot,
        given.step,
        given.micro_step,
        given.phase,
        given.library,
        given.module,
        given.bucket,
        given.engine,
        0,
    )


def file_fetch(given: Any, start_ns: int) -> Fetch:
    """Return a `Fetch` of the file."""
    return Fetch(
        given.id,
        given.kind,
        given.elements,
        given.start_ns - start_ns,
        given.end_ns - start_ns,
        given.wait_ns,
        given.is_recomputation,
        given.step,
        given.micro_step,
        given.phase,
        given.library,
        given.module,
        given.engine,
        0,
    )


def file_copy(given: Any, start_ns: int) -> Copy:
    """Return a `Copy` of the file."""
    return Copy(
        given.what,
        given.direction,
        given.nbytes,
        given.start_ns - start_ns,
        given.end_ns - start_ns,
        given.step,
        given.micro_step,
        given.phase,
        0,
    )


def file_stall(given: Any, start_ns: int) -> Stall:
    """Return a `Stall` of the file."""
    return Stall(
        given.kind,
        given.stream,
        given.collective,
        given.duration_ns,
        given.awaited,
        given.step,
        given.start_ns and given.start_ns - start_ns,
        given.end_ns and given.end_ns - start_ns,
        given.issued_ns and given.issued_ns - start_ns,
        given.bound_ns,
        given.is_side,
    )


def file_device_step(given: Any, start_ns: int) -> DeviceStep:
    """Return a `DeviceStep` of the file."""
    return DeviceStep(
        given.step,
        given.start_ns - start_ns,
        given.end_ns - start_ns,
        given.bound_ns,
    )


def file_memory_sample(given: Any, start_ns: int) -> MemorySample:
    """Return a `MemorySample` of the file."""
    return MemorySample(
        given.at,
        given.time_ns - start_ns,
        given.step,
        given.rss_bytes,
        given.peak_rss_bytes,
        given.host_available_bytes,
        given.host_total_bytes,
        given.shm_free_bytes,
        given.shm_total_bytes,
        given.device,
    )


def file_heartbeat(given: Any, start_ns: int) -> Heartbeat:
    """Return a `Heartbeat` of the file."""
    return Heartbeat(
        given.time_ns - start_ns,
        given.step,
        given.in_flight,
        given.oldest_ns,
    )


def file_group_end(given: Any, start_ns: int) -> GroupEnd:
    """Return a `GroupEnd` of the file."""
    return GroupEnd(
        given.time_ns and given.time_ns - start_ns,
    )


def file_bucket_layout(given: Any, start_ns: int) -> BucketLayout:
    """Return a `BucketLayout` of the file."""
    return BucketLayout(
        given.model,
        given.group,
        given.nbytes,
        given.parameters,
        given.capacity_bytes,
        given.is_rebuilt,
        given.since_ns and given.since_ns - start_ns,
        given.gradient_as_bucket_view,
        given.buckets_reduced,
        given.comm_hook,
    )


def file_note(given: Any, start_ns: int) -> Note:
    """Return a `Note` of the file."""
    return Note(
        given.text,
        given.time_ns and given.time_ns - start_ns,
        given.count,
        given.hang_ranks,
    )


def file_step_totals(given: Any, start_ns: int) -> StepTotals:
    """Return a `StepTotals` of the file."""
    return StepTotals(
        given.step,
        given.start_ns - start_ns,
        given.end_ns - start_ns,
        given.phase_ns,
        given.stalled_ns,
        given.ops,
        given.rss_bytes,
        given.device_bytes,
    )


def file_roll_up(given: Any, start_ns: int) -> RollUp:
    """Return a `RollUp` of the file."""
    return RollUp(
        given.begin_s,
        given.length_s,
        given.first_step,
        given.steps,
        given.total_ns,
        given.fastest_ns,
        given.slowest_ns,
        given.slowest_step,
        given.blocked_ns,
        given.stalled_ns,
        given.calls,
        given.nbytes,
        given.rss_bytes,
        given.device_bytes,
        given.phase_ns,
        given.ops,
        given.bins,
        given.lost,
        given.until_ns and given.until_ns - start_ns,
    )


FILE_RECORDS: dict[type[Any], Callable[[Any, int], Any]] = {
    Collective: file_collective,
    Phase: file_phase,
    Step: file_step,
    Flush: file_flush,
    Fetch: file_fetch,
    Copy: file_copy,
    Stall: file_stall,
    DeviceStep: file_device_step,
    MemorySample: file_memory_sample,
    Heartbeat: file_heartbeat,
    GroupEnd: file_group_end,
    BucketLayout: file_bucket_layout,
    Note: file_note,
    StepTotals: file_step_totals,
    RollUp: file_roll_up,
}
"""What a hook may still hold is copied. Other records are written as they are."""
