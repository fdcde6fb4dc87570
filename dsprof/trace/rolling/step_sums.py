"""Sums of single steps: of records as they come, and of details that a killed process left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsprof.trace.device_counters import ALLOCATED
from dsprof.trace.schema import (
    AT_WORK,
    COMM,
    PHASE,
    SCOPES,
    Collective,
    MemorySample,
    OpTotals,
    Phase,
    RollUp,
    Stall,
    Step,
    StepTotals,
)
from dsprof.trace.writing.last_step import Sum

if TYPE_CHECKING:
    from dsprof.trace.rank_trace import RankTrace


class Threads:
    """Which threads train: what another one waits for holds no step up (`dsprof.trace.background`).

    Takes records in their order. A thread is known to train once its first phase has ended.
    """

    def __init__(self) -> None:
        self._training: set[int] = set()
        self._others: set[int] = set()  # that communicated while another thread was at work

    def train(self, thread: int) -> None:
        """Know a thread that runs a phase."""
        self._training.add(thread)

    def blocked_ns(self, thread: int, is_at_work: bool, blocked_ns: int) -> int:
        """Return how long collectives of a thread held the step up.

        `is_at_work` says whether they were issued in a phase of `AT_WORK`.
        """
        if thread <= 0 or thread in self._training:
            return blocked_ns
        if is_at_work:
            self._others.add(thread)
        return 0 if self._training and thread in self._others else blocked_ns


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


def count_sums(sums: StepTotals, more: Sequence[Sum], threads: Threads) -> None:
    """Add sums of collectives and phases."""
    for kind, name, _, _, spent_ns, thread, _ in more:
        if kind == PHASE:
            threads.train(thread)
            _count_phase(sums, name, spent_ns)
    for kind, name, calls, nbytes, spent_ns, thread, is_at_work in more:
        if kind == COMM:
            blocked_ns = threads.blocked_ns(thread, is_at_work, spent_ns)
            count_op(sums, name, calls, nbytes, blocked_ns)


def add_sums(sums: StepTotals | RollUp, more: StepTotals | RollUp) -> None:
    """Add all that steps and spans both have, but memory."""
    sums.stalled_ns += more.stalled_ns
    for name, spent_ns in more.phase_ns.items():
        sums.phase_ns[name] = sums.phase_ns.get(name, 0) + spent_ns
    for op, one in more.ops.items():
        count_op(sums, op, one.calls, one.nbytes, one.blocked_ns)


def count_collective(sums: StepTotals, record: Collective, threads: Threads) -> None:
    """Add a collective."""
    is_at_work = record.phase in AT_WORK
    blocked_ns = threads.blocked_ns(record.thread, is_at_work, record.blocked_ns)
    count_op(sums, record.op, 1, record.nbytes, blocked_ns)


def count_op(sums: StepTotals | RollUp, op: str, calls: int, nbytes: int, blocked_ns: int) -> None:
    """Add collectives of one operation."""
    known = sums.ops.get(op)
    if known is None:
        sums.ops[op] = OpTotals(calls, nbytes, blocked_ns)
        return
    known.calls += calls
    known.nbytes += nbytes
    known.blocked_ns += blocked_ns


def count_phase(sums: StepTotals, record: Phase, threads: Threads) -> None:
    """Add to the time of its phase, unless the user named it."""
    if not record.is_annotation:
        threads.train(record.thread)
        _count_phase(sums, record.name, record.end_ns - record.start_ns)


def _count_phase(sums: StepTotals, name: str, spent_ns: int) -> None:
    if name in SCOPES:
        sums.phase_ns[name] = sums.phase_ns.get(name, 0) + spent_ns


def count_stall(sums: StepTotals, record: Stall) -> None:
    """Add to the time that streams wait."""
    if not record.is_side:
        sums.stalled_ns += record.duration_ns


def sums_of(trace: RankTrace, first_step: int) -> dict[int, StepTotals]:
    """Sum up the details of steps since one; `mark_background` has marked those of threads."""
    found: dict[int, StepTotals] = {}
    for step in trace.steps:
        if step.step >= first_step:
            end_step(found.setdefault(step.step, nothing_yet()), step)
    for sample in trace.memory:
        if sample.at == "step" and sample.step in found:
            take_memory(found[sample.step], sample)
    for phase in trace.spans:
        if phase.step in found and not phase.is_annotation:
            _count_phase(found[phase.step], phase.name, phase.end_ns - phase.start_ns)
    for stall in trace.stalls:
        if stall.step in found:
            count_stall(found[stall.step], stall)
    rows = trace.collectives
    ended = (rows.step >= first_step) & ~rows.is_open
    columns = (
        getattr(rows, name)[ended].tolist()
        for name in ("step", "op", "nbytes", "blocked_ns", "is_background")
    )
    for number, op, nbytes, blocked_ns, is_background in zip(*columns, strict=True):
        if number in found:
            held_ns = 0 if is_background else blocked_ns
            count_op(found[number], rows.words[op], 1, nbytes, held_ns)
    return found
