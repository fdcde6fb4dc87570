"""Turns records of hooks into those of the file: a copy, relative.

Written by `python -m dsprof.trace.generate`: edit `dsprof.trace.schema`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dsprof.events import OUTSIDE
from dsprof.trace.schema import (
    BucketLayout,
    Collective,
    Copy,
    DeviceStep,
    Fetch,
    Flush,
    Heartbeat,
    MemorySample,
    Note,
    Phase,
    Stall,
    Step,
)


def settled_collective(given: Any, start_ns: int) -> Collective:
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


def settled_phase(given: Any, start_ns: int) -> Phase:
    """Return a `Phase` of the file."""
    record: Phase = given.__copy__()
    record.start_ns -= start_ns
    record.end_ns -= start_ns
    record.name = ""
    record.thread = 0
    record.is_annotation = False
    record.scope = OUTSIDE
    return record


def settled_step(given: Any, start_ns: int) -> Step:
    """Return a `Step` of the file."""
    record: Step = given.__copy__()
    record.start_ns -= start_ns
    record.end_ns -= start_ns
    return record


def settled_flush(given: Any, start_ns: int) -> Flush:
    """Return a `Flush` of the file."""
    record: Flush = given.__copy__()
    record.start_ns -= start_ns
    record.end_ns -= start_ns
    record.thread = 0
    return record


def settled_fetch(given: Any, start_ns: int) -> Fetch:
    """Return a `Fetch` of the file."""
    record: Fetch = given.__copy__()
    record.start_ns -= start_ns
    record.end_ns -= start_ns
    record.thread = 0
    return record


def settled_copy(given: Any, start_ns: int) -> Copy:
    """Return a `Copy` of the file."""
    record: Copy = given.__copy__()
    record.start_ns -= start_ns
    record.end_ns -= start_ns
    record.thread = 0
    return record


def settled_stall(given: Any, start_ns: int) -> Stall:
    """Return a `Stall` of the file."""
    record: Stall = given.__copy__()
    if record.start_ns:
        record.start_ns -= start_ns
    if record.end_ns:
        record.end_ns -= start_ns
    if record.issued_ns:
        record.issued_ns -= start_ns
    return record


def settled_device_step(given: Any, start_ns: int) -> DeviceStep:
    """Return a `DeviceStep` of the file."""
    record: DeviceStep = given.__copy__()
    record.start_ns -= start_ns
    record.end_ns -= start_ns
    return record


def settled_memory_sample(given: Any, start_ns: int) -> MemorySample:
    """Return a `MemorySample` of the file."""
    record: MemorySample = given.__copy__()
    record.time_ns -= start_ns
    return record


def settled_heartbeat(given: Any, start_ns: int) -> Heartbeat:
    """Return a `Heartbeat` of the file."""
    record: Heartbeat = given.__copy__()
    record.time_ns -= start_ns
    return record


def settled_bucket_layout(given: Any, start_ns: int) -> BucketLayout:
    """Return a `BucketLayout` of the file."""
    record: BucketLayout = given.__copy__()
    if record.since_ns:
        record.since_ns -= start_ns
    return record


def settled_note(given: Any, start_ns: int) -> Note:
    """Return a `Note` of the file."""
    record: Note = given.__copy__()
    if record.time_ns:
        record.time_ns -= start_ns
    return record


SETTLED: dict[type[Any], Callable[[Any, int], Any]] = {
    Collective: settled_collective,
    Phase: settled_phase,
    Step: settled_step,
    Flush: settled_flush,
    Fetch: settled_fetch,
    Copy: settled_copy,
    Stall: settled_stall,
    DeviceStep: settled_device_step,
    MemorySample: settled_memory_sample,
    Heartbeat: settled_heartbeat,
    BucketLayout: settled_bucket_layout,
    Note: settled_note,
}
"""What a hook may still hold is copied. Other records are written as they are."""
