"""low-bus-bandwidth: transfers far slower than the links, or than the same machine was before."""

from __future__ import annotations

from collections.abc import Iterable

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import percent, rate, size
from dsprof.rules.hardware.judged_transfers import Judged, Thresholds, judged
from dsprof.rules.reasons import NO_ARRIVALS
from dsprof.rules.rule import Rule, RuleMeta

_ROWS = 16


class LowBusBandwidth(Rule):
    """Compares only the transfer with a baseline, else with what others measured on such links."""

    meta = RuleMeta(
        id="low-bus-bandwidth",
        title="Collectives are as fast as their links",
        failing_title="Collectives are slower than their links",
        why="A link at a fraction of its speed makes every collective longer, for all ranks.",
        category="communication",
        order=110,
        needs=(Arrivals, BaselineCosts, EnvironmentFacts, Steps),
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Fail transfers at less than a share of what is expected."""
        rows, facts = judged(run, thresholds), run[EnvironmentFacts]
        fair = [row for row in rows if row.is_fair(thresholds)]
        known = [row for row in fair if row.expected is not None]
        slow = [row for row in known if (row.share or 0.0) < thresholds.share]
        links = [row for row in slow if row.transfer.path.nodes > 1 or facts.uses_gpu]
        if links:
            yield self._slow(links, thresholds)
        elif slow:
            yield self._without_link(slow)
        elif not known:
            yield self._undecided(run, rows)
        else:
            worst = _worst(known)
            share = percent(worst.share or 0.0)
            text = "The fastest calls of the slowest transfer reach "
            text += f"{share} of {_source(worst)}."
            yield self.meta.finding(Status.PASS, text, evidence=(_table(known),))

    def _slow(self, slow: list[Judged], thresholds: Thresholds) -> Finding:
        worst = _worst(slow)
        severe = (worst.share or 0.0) < thresholds.severe_share
        return self.meta.finding(
            Status.FAIL,
            _told(worst),
            severity=Severity.HIGH if severe else Severity.MEDIUM,
            cause="These are transfer times without waits for late ranks, of calls that "
            "overlap no other communication: a link, an adapter or the chosen path is slow, "
            "or other programs use it constantly.",
            action=_ACROSS if worst.transfer.path.nodes > 1 else _WITHIN,
            evidence=(_table(slow),),
            confidence="medium" if worst.expected and worst.expected.is_measured else "low",
        )

    def _without_link(self, slow: list[Judged]) -> Finding:
        """Report CPUs of one host: there processors move the bytes, and no link is to blame."""
        return self.meta.finding(
            Status.INFO,
            _told(_worst(slow)),
            title="Collectives are slower than when this machine was measured",
            cause="Inside one host the CPU cores move the bytes. They had other work: other "
            "programs, data loading, or more threads than cores.",
            action="Leave free cores to each rank: lower OMP_NUM_THREADS, use fewer data "
            "loader workers or fewer ranks. If another program was running, record again.",
            evidence=(_table(slow),),
            confidence="medium",
        )

    def _undecided(self, run: RunSummary, rows: list[Judged]) -> Finding:
        """Say why there is nothing to judge, or nothing to judge by."""
        if not any(len(one.rows) for one in run[Arrivals].ranks.values()):
            return self.meta.not_applicable(NO_ARRIVALS)
        if not rows:
            text = "each transfer overlaps another one, or its end is unknown on some rank."
        elif not any(row.expected for row in rows):
            text = "the speed of the links is unknown; measure it with dsprof bench, and pass "
            text += "the result as --baseline FILE."
        else:
            return self.meta.not_applicable(
                "No collective is both large and frequent enough to judge its bandwidth."
            )
        return self.meta.unknown(f"Unknown: {text}")


_ACROSS = (
    "Check which network NCCL chose (NCCL_DEBUG=INFO in one short run) and whether GPUDirect "
    "RDMA is on; compare adapters and counters of the hosts. Measure again with dsprof bench "
    "on the idle machine: what is still slow there is not caused by the training."
)
_WITHIN = (
    "Check that peer access and shared memory are not disabled (NCCL_P2P_DISABLE, "
    "NCCL_SHM_DISABLE), and that ranks run on the CPUs near their devices. Measure again with "
    "dsprof bench on the idle machine: what is still slow there is not caused by the training."
)


def _worst(rows: list[Judged]) -> Judged:
    return min(rows, key=lambda row: row.share or 0.0)


def _told(row: Judged) -> str:
    """Say in one sentence how fast a transfer is, and how fast it should be."""
    transfer, path = row.transfer, row.transfer.path
    where = f"across {path.nodes} hosts" if path.nodes > 1 else "within a host"
    return (
        f"{path.op} of {size(transfer.nbytes)} in {path.group} ({where}) moves "
        f"{rate(transfer.busbw)}; the fastest quarter of the calls reach "
        f"{rate(transfer.quick_busbw)}, {percent(row.share or 0.0)} of {_source(row)}."
    )


def _source(row: Judged) -> str:
    """Say what a transfer is held to."""
    if row.expected is None:
        return ""
    speed = rate(row.expected.busbw)
    if row.expected.is_measured:
        return f"the {speed} of the baseline"
    return f"the {speed} that others reach at this size over {row.expected.source}"


def _table(rows: list[Judged]) -> Table:
    slowest = sorted(rows, key=lambda row: row.share or 0.0)[:_ROWS]
    return Table(
        columns=(
            Column("operation"),
            Column("group"),
            Column("ranks", "count"),
            Column("hosts", "count"),
            Column("size", "bytes"),
            Column("calls", "count"),
            Column("transfer", "ns"),
            Column("bus bandwidth", "rate"),
            Column("of the fastest quarter", "rate"),
            Column("expected", "rate"),
            Column("by"),
        ),
        rows=tuple(_cells(row) for row in slowest),
        caption="The call of median speed of each row, from its last rank's entry to its end",
    )


def _cells(row: Judged) -> tuple[str | int | float | None, ...]:
    transfer, path = row.transfer, row.transfer.path
    return (
        path.op,
        path.group,
        path.group_size,
        path.nodes,
        transfer.nbytes,
        transfer.calls,
        transfer.time_ns,
        transfer.busbw,
        transfer.quick_busbw,
        row.expected.busbw if row.expected else None,
        row.expected.source if row.expected else "",
    )
