"""allocator-fragmentation: device memory that is reserved, unused, and in the way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.memory import Memory, RankMemory
from dsprof.analysis.aggregates.snapshots import Snapshots
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Details, Finding, Severity, Status, Table
from dsprof.findings.wording import percent, plural, size
from dsprof.rules.evidence.allocator import against_fragments, expandable_ranks, retries
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.trace.device_counters import DEVICE_TOTAL, PEAK_RESERVED, RESERVED, STUCK
from dsprof.trace.dumps.memory_snapshot import MemorySnapshot

_OVER_COMMITTED = "The device ran out of memory; fragmentation is not the cause"
_CAUSE = "Tensors of many sizes are freed in a different order than they were allocated."
_FULL = (
    "Little memory is stuck at step ends: the device was probably full. The allocator then frees "
    "its whole cache and tries again."
)
_EXPANDED = "expandable_segments is already on for these ranks: "
_SMALLER = "pad batches to few lengths, and use smaller micro-batches."
_TOO_MUCH = "Stuck and free memory together are too small for the request."
_UNCLEAR = (
    "The cause is uncertain: the snapshot was taken after the failed request, or the request fits "
    "only together with memory that was free on the device."
)
_LIMITED_TOO = (
    "Or a limit of the process refused the request: the device had more free memory than it needed."
)
_USE_LESS = (
    "Shard, offload or recompute more, or use smaller micro-batches; the memory section shows what "
    "held most at the peak."
)
_RARE_STEPS = 100
"""A retry in more steps than these costs little: the device is close to its limit."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When fragments are many."""

    stuck_share: float = 0.15  # of reserved memory, at the end of the last step
    stuck_bytes: int = 1 << 30  # less is not worth a setting
    retries: int = 1  # after the first recorded step


class AllocatorFragmentation(Rule):
    """Reads the allocator's counters at step ends, and snapshots of its memory.

    What is stuck are the unused parts of segments that are partly used. Whole free segments are
    cache: the allocator gives them back when asked.
    """

    meta = RuleMeta(
        id="allocator-fragmentation",
        title="Device memory shows little fragmentation",
        failing_title="Device memory is fragmented",
        why="Fragments cannot serve large requests: the allocator flushes its cache and retries, "
        "which stalls the device, until a request fails.",
        category="memory",
        order=440,
        needs=(Memory, Snapshots, Engines, EnvironmentFacts),
        on_cpus="The run was on CPUs: there is no device allocator.",
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Judge each rank by its snapshot, by its last step, and by retries since the first."""
        snapshots = run[Snapshots].ranks
        ranks = {rank: m for rank, m in run[Memory].ranks.items() if m.device_last.get(RESERVED)}
        if snapshots:
            yield self._laid_out(run, snapshots, thresholds)
        elif not ranks or not all(STUCK in memory.device_last for memory in ranks.values()):
            yield self.meta.unknown("Unknown: no counters of the device allocator were recorded.")
        else:
            yield from self._counted(run, ranks, thresholds)

    def _counted(
        self, run: RunSummary, ranks: dict[int, RankMemory], thresholds: Thresholds
    ) -> Iterable[Finding]:
        retrying = tuple(r for r in sorted(ranks) if retries(ranks[r]) >= thresholds.retries)
        last = {rank: ranks[rank].device_last for rank in sorted(ranks)}
        stuck = tuple(r for r, m in last.items() if _is_much(m[STUCK], m[RESERVED], thresholds))
        if retrying or stuck:
            yield self._finding(run, ranks, retrying, stuck)

    def _finding(
        self,
        run: RunSummary,
        ranks: dict[int, RankMemory],
        retrying: tuple[int, ...],
        stuck: tuple[int, ...],
    ) -> Finding:
        affected = tuple(sorted({*retrying, *stuck}))
        worst = max(affected, key=lambda rank: ranks[rank].device_last[STUCK])
        memory = ranks[worst].device_last
        summary = (
            f"{size(memory[STUCK])} of {size(memory[RESERVED])} reserved on rank {worst} are stuck "
            "in fragments"
        )
        action = _action(run, affected)
        if not retrying and all(_has_room(ranks[rank]) for rank in stuck):
            return self.meta.finding(
                Status.INFO,
                f"{summary}; at least as much of the device was never reserved.",
                title="Fragments of device memory do no harm yet",
                cause=_CAUSE,
                action=f"No change is needed. To prevent harm: {action}",
                ranks=affected,
                evidence=(_table(ranks, affected),),
                confidence="medium",
            )
        if retrying:
            most = max(retries(ranks[rank]) for rank in retrying)
            summary += f"; allocations were retried up to {plural(most, 'time')} on a rank"
        is_often = any(_retries_often(ranks[rank]) for rank in retrying)
        return self.meta.finding(
            Status.FAIL,
            summary + ".",
            title="" if stuck else "Device allocations were retried",
            severity=Severity.HIGH if is_often else Severity.MEDIUM,
            cause=_CAUSE if stuck else _FULL,
            action=action,
            ranks=affected,
            evidence=(_table(ranks, affected),),
            confidence="high" if retrying else "medium",
        )

    def _laid_out(
        self, run: RunSummary, snapshots: dict[int, MemorySnapshot], thresholds: Thresholds
    ) -> Finding:
        """Judge the rank whose snapshot shows most that is stuck."""
        failed = [rank for rank, one in snapshots.items() if one.was_fragmentation]
        over = [rank for rank in failed or snapshots if snapshots[rank].oom_bytes]
        rank = max(over or snapshots, key=lambda rank: snapshots[rank].stuck_bytes)
        one = snapshots[rank]
        share = one.stuck_bytes / one.reserved_bytes if one.reserved_bytes else 0.0
        is_much = _is_much(one.stuck_bytes, one.reserved_bytes, thresholds)
        summary = (
            f"{size(one.stuck_bytes)} of {size(one.reserved_bytes)} reserved on rank {rank} "
            f"({percent(share)}) are stuck in partly used segments; {size(one.cached_bytes)} more "
            "are free and can be returned to the device"
        )
        if one.oom_bytes:
            summary += f"; a request of {size(one.oom_bytes)} failed{_free_then(one)}"
        if one.was_limited and not one.was_fragmentation:
            return self._limited(rank, one)
        status = Status.FAIL if failed or is_much else Status.INFO
        return self.meta.finding(
            status,
            summary + ".",
            **Details(
                ranks=(rank,),
                confidence="high" if one.is_clear or not one.oom_bytes else "low",
            )
            | _words(status, _action(run, (rank,)), one),
        )

    def _limited(self, rank: int, one: MemorySnapshot) -> Finding:
        asked = f"A request of {size(one.oom_bytes)} failed on rank {rank}"
        return self.meta.finding(
            Status.FAIL,
            f"{asked}{_free_then(one)}. torch had reserved {size(one.reserved_bytes)} when the "
            "snapshot was taken.",
            title="A process reached its device memory limit",
            severity=Severity.HIGH,
            cause="A limit of the process probably refused the request: the device had more free "
            "memory than it needed.",
            action="Raise the limit if no other process uses the device: "
            "torch.cuda.set_per_process_memory_fraction, or per_process_memory_fraction in "
            "PYTORCH_CUDA_ALLOC_CONF.",
            ranks=(rank,),
            confidence="medium",
        )


def _free_then(one: MemorySnapshot) -> str:
    """Say what was free when the request failed, and whether the figures are of that moment."""
    free = one.oom_device_free_bytes
    text = f", with {size(free)} free on the device" if free is not None else ""
    return f"{text} (memory has changed since)" if one.changed_since_oom else text


def _action(run: RunSummary, ranks: tuple[int, ...]) -> str:
    """Return what to set, beside what is set already."""
    expandable = expandable_ranks(run[EnvironmentFacts])
    is_set = all(expandable >> rank & 1 for rank in ranks)
    setting = against_fragments(run[EnvironmentFacts])
    first = _EXPANDED if is_set else f"Set {setting} on every rank; if that does not help, "
    return first + _knob(run[Engines])


def _knob(engines: Engines) -> str:
    """Return which short-lived buffers of DeepSpeed could be smaller, with their present sizes."""
    keys = {
        1: ("reduce_bucket_size",),
        2: ("reduce_bucket_size",),
        3: ("stage3_prefetch_bucket_size", "stage3_max_live_parameters", "reduce_bucket_size"),
    }.get(engines.stage or 0, ())
    values = {key: engines.zero(key) for key in keys}
    known = [f"{key} (now {value:,})" for key, value in values.items() if isinstance(value, int)]
    return f"make {' and '.join(known)} smaller, {_SMALLER}" if known else _SMALLER


def _words(status: Status, action: str, one: MemorySnapshot) -> Details:
    is_unclear = one.oom_bytes and not one.is_clear
    if status is Status.FAIL:
        severity = Severity.HIGH if one.oom_bytes else Severity.MEDIUM
        doubt = f" {_LIMITED_TOO if one.was_limited else _UNCLEAR}" if is_unclear else ""
        cause = f"{_CAUSE}{doubt}"
        return {"severity": severity, "cause": cause, "action": action}
    if is_unclear:
        return {"title": "The device ran out of memory", "cause": _UNCLEAR, "action": _USE_LESS}
    if one.oom_bytes:
        return {"title": _OVER_COMMITTED, "cause": _TOO_MUCH, "action": _USE_LESS}
    return {"title": AllocatorFragmentation.meta.title}


def _is_much(stuck: int, reserved: int, thresholds: Thresholds) -> bool:
    return stuck >= thresholds.stuck_bytes and stuck >= thresholds.stuck_share * reserved


def _has_room(memory: RankMemory) -> bool:
    """Say whether the device has more memory that was never reserved than is stuck."""
    most = memory.device_max
    free = most.get(DEVICE_TOTAL, 0) - most.get(PEAK_RESERVED, most[RESERVED])
    return free >= memory.device_last[STUCK]


def _retries_often(memory: RankMemory) -> bool:
    steps = memory.at_steps.step
    return retries(memory) * _RARE_STEPS >= int(steps[-1] - steps[0])


def _table(ranks: dict[int, RankMemory], affected: tuple[int, ...]) -> Table:
    return Table(
        columns=(
            Column("rank"),
            Column("stuck", "bytes"),
            Column("reserved", "bytes"),
            Column("share", "share"),
            Column("retries after the first step", "count"),
        ),
        rows=tuple(
            (
                rank,
                ranks[rank].device_last[STUCK],
                ranks[rank].device_last[RESERVED],
                ranks[rank].device_last[STUCK] / ranks[rank].device_last[RESERVED],
                retries(ranks[rank]),
            )
            for rank in affected
        ),
        caption="At the end of the last step",
    )
