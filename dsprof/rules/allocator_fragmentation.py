"""allocator-fragmentation: device memory that is reserved, unused, and in the way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.memory import Memory, RankMemory
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.summary import RunSummary
from dsprof.rules.rule import Column, Finding, RuleMeta, Severity, Status, Table

STUCK = "inactive_split_bytes.all.current"
RESERVED = "reserved_bytes.all.current"
RETRIES = "num_alloc_retries"
"""Counters of torch.cuda.memory_stats()."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When fragments are many."""

    stuck_share: float = 0.15  # of reserved memory, at the end of the last step
    stuck_bytes: int = 1 << 30  # less is not worth a setting
    retries: int = 1  # after the first recorded step


class AllocatorFragmentation:
    """Reads the allocator's counters at step ends.

    What is stuck are the unused parts of segments that are partly used. Whole free segments are
    cache: the allocator gives them back when asked.
    """

    meta = RuleMeta(
        id="allocator-fragmentation",
        title="Device memory shows little fragmentation",
        failing_title="Device memory is fragmented",
        why="Memory in fragments cannot serve large requests: the allocator flushes its cache and "
        "tries again, which stalls the device, and in the end runs out.",
        category="memory",
        needs=(Memory, Run),
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Judge each rank by its last step, and by retries since the first."""
        if run[Run].is_cpu:
            text = "The run was on CPUs: there is no device allocator."
            yield self.meta.finding(Status.NOT_APPLICABLE, text)
            return
        ranks = {rank: m for rank, m in run[Memory].ranks.items() if m.device_last.get(RESERVED)}
        if not ranks or not all(STUCK in memory.device_last for memory in ranks.values()):
            text = "Could not tell: no counters of the device allocator were recorded."
            yield self.meta.finding(Status.UNKNOWN, text)
            return
        retrying = tuple(r for r in sorted(ranks) if _retries(ranks[r]) >= thresholds.retries)
        stuck = tuple(r for r in sorted(ranks) if _is_stuck(ranks[r], thresholds))
        if retrying or stuck:
            yield self._finding(ranks, retrying, stuck)

    def _finding(
        self, ranks: dict[int, RankMemory], retrying: tuple[int, ...], stuck: tuple[int, ...]
    ) -> Finding:
        affected = tuple(sorted({*retrying, *stuck}))
        worst = max(affected, key=lambda rank: ranks[rank].device_last[STUCK])
        memory = ranks[worst].device_last
        summary = (
            f"{memory[STUCK] / 2**30:.2f} of {memory[RESERVED] / 2**30:.2f} GiB reserved on rank "
            f"{worst} are stuck in fragments"
        )
        if retrying:
            most = max(_retries(ranks[rank]) for rank in retrying)
            summary += f", and allocations had to be tried again up to {most} times on a rank"
        return self.meta.finding(
            Status.FAIL,
            summary + ".",
            title="" if stuck else "Allocations on the device had to be tried again",
            severity=Severity.HIGH if retrying else Severity.MEDIUM,
            cause="Tensors of many sizes are freed in another order than they were made.",
            action="Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True on every rank; if that "
            "does not help, make reduce_bucket_size and stage3_prefetch_bucket_size smaller.",
            ranks=affected,
            evidence=(_table(ranks, affected),),
            confidence="high" if retrying else "medium",
        )


def _retries(memory: RankMemory) -> int:
    return memory.device_last.get(RETRIES, 0) - memory.device_first.get(RETRIES, 0)


def _is_stuck(memory: RankMemory, thresholds: Thresholds) -> bool:
    stuck, reserved = memory.device_last[STUCK], memory.device_last[RESERVED]
    return stuck >= thresholds.stuck_bytes and stuck >= thresholds.stuck_share * reserved


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
                _retries(ranks[rank]),
            )
            for rank in affected
        ),
        caption="At the end of the last step",
    )


RULE = AllocatorFragmentation()
