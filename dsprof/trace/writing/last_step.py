"""The figures of the last step, for loggers of the training program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.trace.device_counters import ALLOCATED, RESERVED, STUCK
from dsprof.trace.schema import (
    COMM,
    FLUSH,
    Collective,
    DeviceStep,
    Flush,
    MemorySample,
    Record,
    Stall,
    Step,
)

_HOST = "cpu"
_KEPT_STEPS = 8
"""A device is known to have ended a step a few steps after the host has."""

_DEVICE_BYTES = {
    "allocated": ALLOCATED,
    "reserved": RESERVED,
    "stuck": STUCK,
}


Sum = tuple[str, str, int, int, int, int, bool]
"""Kind of records, name, calls, bytes, time, thread, whether in a phase of `AT_WORK`.

The time of collectives is their `blocked_ns`.
"""


@dataclass(slots=True)
class _Sums:
    calls: int = 0
    nbytes: int = 0
    blocked_ns: int = 0
    stalled_ns: int = 0
    flushes: int = 0


class LastStep:
    """Adds up the records of each step, from the first question on.

    The writer's thread adds; `figures` is replaced as a whole, so that any thread may read it.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self.figures: dict[str, float] = {}
        self._sums: defaultdict[int, _Sums] = defaultdict(_Sums)
        self._ended: Step | None = None
        self._memory: MemorySample | None = None
        self._device: dict[str, int] = {}  # counters of its memory, which hooks sample

    def take(self, record: Record) -> None:
        """Add a record."""
        if isinstance(record, Collective):
            sums = self._sums[record.step]
            sums.calls += record.on_wire
            sums.nbytes += record.nbytes if record.on_wire else 0
            sums.blocked_ns += record.blocked_ns
        elif isinstance(record, Flush):
            self._sums[record.step].flushes += 1
        elif isinstance(record, Stall):
            self._sums[record.step].stalled_ns += 0 if record.is_side else record.duration_ns
        elif isinstance(record, MemorySample):
            self._device = record.device or self._device
        elif isinstance(record, DeviceStep):
            sums = self._sums[record.step]
            self._show(record.step, record.end_ns - record.start_ns, sums.stalled_ns)

    def add(self, step: int, sums: Iterable[Sum]) -> None:
        """Add sums of a step."""
        of_step = self._sums[step]
        for kind, _, calls, nbytes, blocked_ns, _, _ in sums:
            if kind == COMM:
                of_step.calls += calls
                of_step.nbytes += nbytes
                of_step.blocked_ns += blocked_ns
            elif kind == FLUSH:
                of_step.flushes += calls

    def end(self, step: Step, memory: MemorySample, device: str) -> None:
        """Take the end of a step: what is still waited for in the one before has come by now."""
        before, self._ended, self._memory = self._ended, step, memory
        if before is not None and device == _HOST:
            sums = self._sums[before.step]
            self._show(before.step, before.end_ns - before.start_ns, sums.blocked_ns)
        for number in sorted(self._sums)[:-_KEPT_STEPS]:
            del self._sums[number]

    def _show(self, number: int, total_ns: int, exposed_ns: int) -> None:
        sums = self._sums[number]
        figures: dict[str, float] = {
            "dsprof/step": number,
            "dsprof/step_seconds": total_ns / 1e9,
            "dsprof/exposed_seconds": exposed_ns / 1e9,
            "dsprof/exposed_share": exposed_ns / max(total_ns, 1),
            "dsprof/collectives": sums.calls,
            "dsprof/bytes": sums.nbytes,
            "dsprof/flushes": sums.flushes,
        }
        if self._memory is not None and self._memory.rss_bytes >= 0:
            figures["dsprof/host_memory_bytes"] = self._memory.rss_bytes
        for name, counter in _DEVICE_BYTES.items():
            if counter in self._device:
                figures[f"dsprof/device_{name}_bytes"] = self._device[counter]
        self.figures = figures
