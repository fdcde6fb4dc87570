"""Collectives outside the recorded window, and after the budget: only their sums are written."""

from __future__ import annotations

from typing import Any

from dsprof.trace.schema import Collective, CounterRow, StepCounters


class Counters:
    """Collectives of steps that are only counted."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[tuple[Any, ...], CounterRow]] = {}

    def add(self, record: Collective) -> None:
        """Count one collective."""
        requested, phase = record.requested, record.phase
        group, is_async = record.group, bool(record.is_async)
        key = (record.op, group, requested, record.dtype, phase, is_async, record.on_wire)
        rows = self._steps.setdefault(record.step, {})
        row = rows.get(key)
        if row is None:
            row = rows[key] = CounterRow(
                record.op,
                group,
                calls=0,
                nbytes=0,
                requested=requested,
                dtype=record.dtype,
                phase=phase,
                is_async=is_async,
                on_wire=record.on_wire,
            )
        row.calls += 1
        row.nbytes += record.nbytes
        row.blocked_ns += record.blocked_ns

    def take(self, before: int) -> list[StepCounters]:
        """Take out the counters of steps before `before`."""
        if not self._steps:
            return []
        steps = sorted(step for step in self._steps if step < before)
        return [StepCounters(step, list(self._steps.pop(step).values())) for step in steps]
