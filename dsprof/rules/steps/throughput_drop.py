"""throughput-drop: DeepSpeed's log shows fewer samples a second at the end than at the start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median, quantiles
from typing import Any

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.logs import Logs
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import count, percent, plural, size
from dsprof.rules.causes import KEPT
from dsprof.rules.evidence.growth import slows_down
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.trace.rank_log import Throughput

_ROWS = 32
_LENGTHENING = (
    "data_efficiency.data_routing.random_ltd",
    "data_efficiency.data_sampling.curriculum_learning",
    "curriculum_learning",
)
"""Blocks of DeepSpeed's configuration whose schedules lengthen inputs."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """How many reports are needed, and what counts as a change."""

    reports: int = 12
    drop: float = 0.1  # share of the throughput at the start
    growth_gib: float = 0.5
    growth: float = 0.05  # share of the memory at the start


class ThroughputDrop(Rule):
    """Compares the first and the last fifth of what the timer reported; the first is warm-up."""

    meta = RuleMeta(
        id="throughput-drop",
        title="Throughput in the log is stable",
        failing_title="Throughput drops during the run",
        why="A run that slows down takes longer than its first steps suggest.",
        category="steps",
        order=430,
        needs=(Logs, Engines),
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Judge throughput and allocated memory of the rank that reports most."""
        printed = max((log.throughput for log in run[Logs].ranks.values()), key=len, default=[])
        logged = [report for report, _ in groupby(printed)]  # loggers may print a line twice
        reports = _last_run(logged)[1:]
        if not logged:
            yield self.meta.not_applicable("No log of DeepSpeed's throughput timer was given.")
        elif _is_of_several(logged):
            yield self.meta.unknown("Unknown: each step is reported again, as by several engines.")
        elif len(reports) < thresholds.reports:
            yield self.meta.unknown(
                f"Unknown: {plural(len(reports), 'report')} after the first; "
                f"{thresholds.reports} are needed."
            )
        else:
            yield self._throughput(reports, thresholds, run[Engines])
            yield from self._memory(reports, thresholds)

    def _throughput(
        self, reports: Sequence[Throughput], thresholds: Thresholds, engines: Engines
    ) -> Finding:
        first, last = _ends([one.samples_per_s for one in reports])
        before, after = median(first), median(last)
        drop = 1 - after / before if before else 0.0
        text = f"{count(before)} samples/s at the start, {count(after)} at the end"
        is_apart = quantiles(last)[2] < quantiles(first)[0]
        if drop < thresholds.drop or not is_apart:
            return self.meta.finding(Status.PASS, f"{text}.")
        config = engines.main.effective if engines.main else {}
        if lengthening := [key for key in _LENGTHENING if _is_on(config, key)]:
            return self.meta.finding(
                Status.INFO,
                f"{text}: {percent(drop)} fewer, with `{lengthening[0]}`.",
                title="Throughput drops while inputs may grow",
                cause="The schedule of this setting can lengthen the inputs during the run. A "
                "sample then takes longer by design.",
                action="Compare tokens per second.",
                evidence=(_table(reports),),
                confidence="medium",
            )
        return self.meta.finding(
            Status.FAIL,
            f"{text}: {percent(drop)} fewer.",
            severity=Severity.MEDIUM,
            cause="Longer inputs, a data loader that falls behind, throttled devices, or memory "
            "pressure.",
            fix="Record an early part and a late one, and compare them",
            action="Record a late part and an early part of the run with DSPROF=1, and compare "
            "them with dsprof compare.",
            evidence=(_table(reports),),
            confidence="medium",
        )

    def _memory(self, reports: Sequence[Throughput], thresholds: Thresholds) -> Iterable[Finding]:
        first, last = _ends([one.allocated_gib for one in reports])
        before, after = median(first), median(last)
        rises = sum(b.allocated_gib >= a.allocated_gib for a, b in pairwise(reports))
        grown = after - before
        middle = reports[len(reports) // 2].allocated_gib  # a cache that fills up grows until then
        is_steady = rises >= 0.9 * (len(reports) - 1) and after - middle >= grown / 4
        least = max(thresholds.growth_gib, thresholds.growth * before)
        if min(first) >= 0 and grown >= least and is_steady and not slows_down(_rises(reports)):
            yield self.meta.finding(
                Status.FAIL,
                f"MemAllocated grows from {size(before * 2**30)} in step {reports[0].step:,} to "
                f"{size(after * 2**30)} in step {reports[-1].step:,}.",
                title="Allocated memory grows during the run",
                severity=Severity.MEDIUM,
                cause="Tensors are kept from step to step: for example a sum of losses with their "
                "graphs, or a list of outputs.",
                action="Sum loss.detach(), which holds no graph. Find what is kept with "
                "torch.cuda.memory._record_memory_history().",
                evidence=(_table(reports),),
                restates=KEPT,
                confidence="medium",
            )


def _rises(reports: Sequence[Throughput]) -> list[float]:
    """Return by how much allocated memory rises from the begin of each quarter to the next."""
    begins = [reports[n * len(reports) // 4].allocated_gib for n in range(4)]
    return [after - before for before, after in pairwise(begins)]


def _is_on(config: Mapping[str, Any], block: str) -> bool:
    """Say whether `enabled` is true in a block, named by its dotted keys."""
    for key in block.split("."):
        config = inner if isinstance(inner := config.get(key), Mapping) else {}
    return config.get("enabled") is True


def _is_of_several(reports: Sequence[Throughput]) -> bool:
    """Say whether steps come in twos or more; a run that starts again may repeat one."""
    again = sum(b.step == a.step for a, b in pairwise(reports))
    return again > 1 and 2 * again >= len(reports) - 1


def _last_run(reports: Sequence[Throughput]) -> Sequence[Throughput]:
    """Return the reports of the last run: a log may hold several, whose steps begin again."""
    starts = [i + 1 for i, (a, b) in enumerate(pairwise(reports)) if b.step <= a.step]
    return reports[starts[-1] :] if starts else reports


def _ends(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    count = max(3, len(values) // 5)
    return values[:count], values[-count:]


def _table(reports: Sequence[Throughput]) -> Table:
    stride = -(-len(reports) // _ROWS)
    columns = (Column("step", "count"), Column("samples/s"), Column("allocated GiB"))
    rows = tuple(
        (
            one.step,
            round(one.samples_per_s, 2),
            one.allocated_gib if one.allocated_gib >= 0 else None,
        )
        for one in reports[::stride]
    )
    return Table(columns, rows, caption="A sample of the reports, without the first")
