"""Sums of single steps: of records as they come, and of details that a killed process left."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dsprof.trace.device_counters import ALLOCATED
from dsprof.trace.schema import (
    COMM,
    PHASE,
    SCOPES,
    MemorySample,
    OpTotals,
    Phase,
    Stall,
    Step,
    StepTotals,
)
from dsprof.trace.writing.last_step import Sum

if TYPE_CHECKING:
    from dsprof.trace.rank_trace import RankTrace


def nothing_yet() -> StepTotals:
    """Return empty sums."""
    return StepTotals(-1, 0, 0)


def end_step(sums: StepTotals, step: Step) -> None:
    """Add the end of the step."""
    sums.step, sums.start_ns, sums.end_ns = step.step, step.start_ns, step.end_ns


def take_memory(sums: StepTotals, sample: MemorySample) -> None:
    """Take what is in use in the process or on its device: they are sampled apart."""
    if sample.rss_bytes >= 0:
        sums.rss_bytes = sample.rss_bytes
    if sample.device:
        sums.device_bytes = sample.device.get(ALLOCATED, -1)


def count_sums(sums: StepTotals, more: Iterable[Sum]) -> None:
    """Add sums of collectives and phases."""
    for kind, name, calls, nbytes, spent_ns, _ in more:
        if kind == COMM:
            count_op(sums, name, calls, nbytes, spent_ns)
        elif kind == PHASE:
            _count_phase(sums, name, spent_ns)


def add_sums(sums: StepTotals, more: StepTotals) -> None:
    """Add all but the step itself and its memory."""
    sums.stalled_ns += more.stalled_ns
    for name, spent_ns in more.phase_ns.items():
        _count_phase(sums, name, spent_ns)
    for op, one in more.ops.items():
        count_op(sums, op, one.calls, one.nbytes, one.blocked_ns)


def count_op(sums: StepTotals, op: str, calls: int, nbytes: int, blocked_ns: int) -> None:
    """Add collectives of an operation."""
    known = sums.ops.get(op)
    if known is None:
        sums.ops[op] = OpTotals(calls, nbytes, blocked_ns)
        return
    known.calls += calls
    known.nbytes += nbytes
    known.blocked_ns += blocked_ns


def count_phase(sums: StepTotals, record: Phase) -> None:
    """Add to the time of its phase."""
    _count_phase(sums, record.name, record.end_ns - record.start_ns)


def _count_phase(sums: StepTotals, name: str, spent_ns: int) -> None:
    if name in SCOPES:
        sums.phase_ns[name] = sums.phase_ns.get(name, 0) + spent_ns


def count_stall(sums: StepTotals, record: Stall) -> None:
    """Add to the time that streams wait."""
    if not record.is_side:
        sums.stalled_ns += record.duration_ns


def sums_of(trace: RankTrace, first_step: int) -> dict[int, StepTotals]:
    """Sum up the details of steps since one."""
    found: dict[int, StepTotals] = {}
    for step in trace.steps:
        if step.step >= first_step:
            end_step(found.setdefault(step.step, nothing_yet()), step)
    for sample in trace.memory:
        if sample.at == "step" and sample.step in found:
            take_memory(found[sample.step], sample)
    for phase in trace.spans:
        if phase.step in found and not phase.is_annotation:
            count_phase(found[phase.step], phase)
    for stall in trace.stalls:
        if stall.step in found:
            count_stall(found[stall.step], stall)
    rows = trace.collectives
    ended = (rows.step >= first_step) & ~rows.is_open
    columns = (
        getattr(rows, name)[ended].tolist() for name in ("step", "op", "nbytes", "blocked_ns")
    )
    for number, op, nbytes, blocked_ns in zip(*columns, strict=True):
        if number in found:
            count_op(found[number], rows.words[op], 1, nbytes, blocked_ns)
    return found
