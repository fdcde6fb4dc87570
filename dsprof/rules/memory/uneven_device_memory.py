"""uneven-device-memory: one rank needs much more device memory than the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from dsprof.analysis.aggregates.memory import Memory
from dsprof.analysis.aggregates.pipelines import Pipelines
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import named, size
from dsprof.rules.reasons import ON_CPUS
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.trace.device_counters import PEAK_ALLOCATED


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a difference limits the run."""

    # Above the median of all ranks.
    excess_share: float = field(default=0.2, metadata={"maximum": None})
    excess_bytes: int = 1 << 30


class UnevenDeviceMemory(Rule):
    """Compares the peaks of allocated memory of all ranks."""

    meta = RuleMeta(
        id="uneven-device-memory",
        title="Ranks need about the same device memory",
        failing_title="Some ranks need more device memory than the others",
        why="The rank with the highest peak limits the micro-batch of all ranks and runs out of "
        "memory first.",
        category="memory",
        order=480,
        needs=(Memory, Pipelines, Steps),
        on_cpus=ON_CPUS,
        needs_ranks=True,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Name the ranks above the median."""
        ranks = run[Memory].ranks
        peaks = {
            r: m.device_max[PEAK_ALLOCATED]
            for r, m in ranks.items()
            if PEAK_ALLOCATED in m.device_max
        }
        # A rank that ended early may have been below its peak.
        partial = {*run[Steps].partial_ranks}
        whole = {rank: peak for rank, peak in peaks.items() if rank not in partial}
        if len(whole) < 2:
            throughout = " throughout the run" * (len(peaks) > 1)
            yield self.meta.unknown(
                f"Unknown: the device memory of fewer than two ranks was recorded{throughout}."
            )
        else:
            usual = median(whole.values())
            limit = max(usual * (1 + thresholds.excess_share), usual + thresholds.excess_bytes)
            if above := sorted(rank for rank, peak in peaks.items() if peak > limit):
                yield self._uneven(run, peaks, above, usual)

    def _uneven(
        self, run: RunSummary, peaks: dict[int, int], above: list[int], usual: float
    ) -> Finding:
        worst = max(above, key=peaks.__getitem__)
        staged = run[Pipelines].stages > 1
        status = Status.INFO if staged else Status.FAIL
        return self.meta.finding(
            status,
            f"Rank {worst} had {size(peaks[worst])} allocated at its peak, the median of all ranks "
            f"is {size(usual)}; {named(above)} {'is' if len(above) == 1 else 'are'} far above it.",
            severity=Severity.MEDIUM,
            cause="Stages of a pipeline hold different layers, and the first ones hold activations "
            "of the most micro-batches."
            if staged
            else _cause(above),
            action="Move layers between stages (partition_method), or recompute activations in "
            "the stages that hold most."
            if staged
            else "Compare memory snapshots of this rank and another one.",
            ranks=tuple(above),
            evidence=(_table(peaks, usual),),
            confidence="medium",
        )


def _cause(above: list[int]) -> str:
    if above == [0]:
        return (
            "Rank 0 does more than the others: it evaluates, or collects or loads checkpoints "
            "(torch.load without map_location)."
        )
    return (
        "Micro-batches of different length, experts that get more tokens, or parameters that are "
        "sharded unevenly."
    )


def _table(peaks: dict[int, int], usual: float) -> Table:
    order = sorted(peaks, key=lambda rank: -peaks[rank])
    return Table(
        columns=(
            Column("rank"),
            Column("peak allocated", "bytes"),
            Column("of the median", "share"),
        ),
        rows=tuple((r, peaks[r], peaks[r] / usual if usual else None) for r in order[:32]),
        caption="Highest peak first",
    )
