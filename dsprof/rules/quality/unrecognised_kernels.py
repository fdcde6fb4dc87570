"""unrecognised-kernels: what of communication a count by "nccl" in the name would miss."""

from __future__ import annotations

from collections.abc import Iterable

from dsprof.analysis.aggregates.device import Device, KernelSum
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Status, Table
from dsprof.findings.wording import duration, plural
from dsprof.rules.reasons import NO_DEVICE_TIMES
from dsprof.rules.rule import NoThresholds, Rule, RuleMeta

_ROWS = 16


class UnrecognisedKernels(Rule):
    """Mentions kernels whose part in communication is not certain."""

    meta = RuleMeta(
        id="unrecognised-kernels",
        title="All long kernels on communication streams are recognised",
        failing_title="Kernels on communication streams are not recognised",
        why="Communication kernels that count as computation make communication look short and "
        "overlap look good.",
        category="quality",
        order=70,
        needs=(Device,),
    )

    def check(self, run: RunSummary, thresholds: NoThresholds) -> Iterable[Finding]:
        """List long kernels of no family, and families beyond NCCL and RCCL."""
        ranks = run[Device].ranks.values()
        if not ranks:
            yield self.meta.not_applicable(NO_DEVICE_TIMES)
            return
        unknown = _joined(row.unrecognised for row in ranks)
        beyond = _joined(row.beyond for row in ranks)
        if unknown:
            total = sum(sums.total_ns for sums in unknown)
            yield self.meta.finding(
                Status.INFO,
                "Not recognised on communication streams: "
                f"{plural(sum(sums.calls for sums in unknown), 'long kernel')}, "
                f"{duration(total)}. This time counts as computation; if it is communication, "
                "exposed communication is higher than shown.",
                evidence=(_table(unknown, "kernel"),),
                confidence="medium",
            )
        if beyond:
            total = sum(sums.total_ns for sums in beyond)
            yield self.meta.finding(
                Status.INFO,
                f"{duration(total)} of communication are in kernels without nccl or rccl in "
                "their names, which other tools count as computation.",
                title="Communication beyond NCCL and RCCL",
                evidence=(_table(beyond, "library"),),
                confidence="high",
            )


def _joined(sums: Iterable[Iterable[KernelSum]]) -> list[KernelSum]:
    """Add up the kernels of all ranks, the longest first."""
    calls: dict[str, int] = {}
    totals: dict[str, int] = {}
    for one in (one for rank in sums for one in rank):
        calls[one.name] = calls.get(one.name, 0) + one.calls
        totals[one.name] = totals.get(one.name, 0) + one.total_ns
    order = sorted(totals, key=lambda name: -totals[name])
    return [KernelSum(name, calls[name], totals[name]) for name in order]


def _table(sums: list[KernelSum], label: str) -> Table:
    return Table(
        columns=(Column(label), Column("calls", "count"), Column("time", "ns")),
        rows=tuple((one.name[:120], one.calls, one.total_ns) for one in sums[:_ROWS]),
        caption="Sums over the ranks",
    )
