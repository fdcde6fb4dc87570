"""late-rank in profiles: kernels of collectives begin when a rank arrives and end together.

So those of the last to arrive are by far the shortest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from dsprof.analysis.aggregates.device import Device, RankDevice
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.summary import RunSummary
from dsprof.rules.communication.late_rank_causes import BY_KERNELS, by_parts, unknown
from dsprof.rules.rule import Column, Finding, RuleMeta, Severity, Status, Table
from dsprof.rules.wording import delayed, milliseconds


@dataclass(frozen=True, slots=True)
class KernelThresholds:
    """When a rank is called late in profiles."""

    communication_ratio: float = 0.6  # its time in communication kernels / median of the others
    waited_share: float = 0.02  # of the time profiled: what the others wait for it
    severe_share: float = 0.3
    cause_share: float = 0.6  # of the lateness, that one part of a rank's own time must explain


def judge_kernels(
    meta: RuleMeta, run: RunSummary, thresholds: KernelThresholds
) -> Iterable[Finding]:
    """Name the rank whose communication kernels are far shorter than those of all others."""
    device, facts = run[Device], run[Run]
    if problem := _undecidable(device, facts):
        status, text = problem
        yield meta.finding(status, text)
        return
    # By kernel: the recording of a rank may begin or end with another step.
    mean = {
        rank: row.communication_ns / max(row.communication_kernels, 1)
        for rank, row in device.ranks.items()
    }
    late = min(mean, key=lambda rank: (mean[rank], rank))
    spent = {rank: ns * device.ranks[late].communication_kernels for rank, ns in mean.items()}
    others = sorted(ns for rank, ns in spent.items() if rank != late)
    waited_ns = others[len(others) // 2] - spent[late]
    share = waited_ns / max(device.ranks[late].span_ns, 1)
    if spent[late] > thresholds.communication_ratio * others[0] or share < thresholds.waited_share:
        return
    severe = share >= thresholds.severe_share
    why = by_parts(
        BY_KERNELS, late, _excess(device.ranks, late), thresholds.cause_share * waited_ns
    )
    cause, action = why or unknown(late, has_parts=True)
    yield meta.finding(
        Status.FAIL,
        f"{delayed((late,))} the others by {milliseconds(waited_ns)} in collectives "
        f"({share:.0%} of the time recorded).",
        severity=Severity.HIGH if severe else Severity.MEDIUM,
        cause=f"Kernels of collectives begin when a rank arrives and end together. Those of "
        f"rank {late} are by far the shortest: it arrives last. {cause}",
        action=action,
        ranks=(late,),
        evidence=(_by_rank(device.ranks),),
        confidence="high" if severe else "medium",
    )


def _excess(ranks: Mapping[int, RankDevice], late: int) -> dict[str, float]:
    """Return by how much each part of a device's time is above the median of the others, in ns.

    As shares of what was seen of each: windows may be of different length.
    """
    span = max(ranks[late].span_ns, 1)
    found = {}
    for part in BY_KERNELS:
        shares = {rank: getattr(row, part) / max(row.span_ns, 1) for rank, row in ranks.items()}
        found[part] = (shares.pop(late) - median(shares.values())) * span
    return found


def _undecidable(device: Device, run: Run) -> tuple[Status, str] | None:
    if len(device.complete) < len(device.ranks):
        return Status.UNKNOWN, "Unknown: events were left out of the files."
    if missing := [rank for rank in range(run.first.world_size) if rank not in device.ranks]:
        count = len(missing)
        text = f"Could not tell: {count} of {run.first.world_size} ranks left no times, and one "
        return Status.UNKNOWN, text + "of them may be the late one."
    if not any(row.communication_kernels for row in device.ranks.values()):
        return Status.NOT_APPLICABLE, "No kernel communicates."
    return None


def _by_rank(ranks: dict[int, RankDevice]) -> Table:
    shortest = sorted(ranks, key=lambda rank: ranks[rank].communication_ns)[:16]
    return Table(
        columns=(
            Column("rank"),
            Column("in communication kernels", "ns"),
            Column("kernels", "count"),
            Column("idle", "ns"),
            Column("compute", "ns"),
        ),
        rows=tuple(
            (
                rank,
                ranks[rank].communication_ns,
                ranks[rank].communication_kernels,
                ranks[rank].idle_ns,
                ranks[rank].compute_ns,
            )
            for rank in shortest
        ),
        caption="The rank with the shortest communication first; numbers of kernels may differ by "
        "where each rank's recording begins",
    )
