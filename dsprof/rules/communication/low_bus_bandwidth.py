"""low-bus-bandwidth: transfers far slower than the links, or than the same machine was before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.costs import Costs
from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.collectives import busbw_factor
from dsprof.analysis.summary import RunSummary
from dsprof.analysis.transfers import Transfer, transfers
from dsprof.rules.communication.links import Expected, LinkModel
from dsprof.rules.rule import Column, Finding, RuleMeta, Severity, Status, Table
from dsprof.rules.wording import size

_ROWS = 16


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From which sizes on transfers are judged, and when they are slow."""

    share: float = 0.5  # of what is expected
    severe_share: float = 0.2
    calls: int = 8  # undisturbed ones; fewer may all have met the same accident
    within_node_bytes: int = 64 << 20  # least size held to the model of a link
    across_nodes_bytes: int = 512 << 20
    baseline_bytes: int = 1 << 20  # least size held to a baseline, whose latency is measured


@dataclass(frozen=True, slots=True)
class Judged:
    """A transfer and what it is held to; `expected` is None where nothing is known."""

    transfer: Transfer
    expected: Expected | None
    least_bytes: int  # below, it is not judged

    @property
    def share(self) -> float | None:
        """The speed of its quicker calls as a share of what is expected."""
        return self.transfer.quick_busbw / self.expected.busbw if self.expected else None

    def is_fair(self, thresholds: Thresholds) -> bool:
        """Whether it is large, and was seen often enough."""
        large = self.transfer.nbytes >= self.least_bytes
        return large and self.transfer.calls >= thresholds.calls


class LowBusBandwidth:
    """Holds the transfer alone to a baseline, else to what others measured on such links."""

    meta = RuleMeta(
        id="low-bus-bandwidth",
        title="Collectives are as fast as their links",
        failing_title="Collectives are slower than their links",
        why="Links that run at a fraction of their speed make every collective longer, and each "
        "rank waits for it.",
        category="communication",
        needs=(Arrivals, Costs, EnvironmentFacts, Steps),
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
            text = f"The quickest calls of the slowest transfer reach {worst.share:.0%} of "
            text += f"{_source(worst)}."
            yield self.meta.finding(Status.PASS, text, evidence=(_table(known),))

    def _slow(self, slow: list[Judged], thresholds: Thresholds) -> Finding:
        worst = _worst(slow)
        severe = (worst.share or 0.0) < thresholds.severe_share
        return self.meta.finding(
            Status.FAIL,
            _told(worst),
            severity=Severity.HIGH if severe else Severity.MEDIUM,
            cause="These are pure transfer times, without waiting for late ranks, of calls that "
            "nothing else in the run disturbed: a link, an adapter or the chosen path is slow, or "
            "other programs use it constantly.",
            action=_ACROSS if worst.transfer.path.nodes > 1 else _WITHIN,
            evidence=(_table(slow),),
            confidence="medium" if worst.expected and worst.expected.is_measured else "low",
        )

    def _without_link(self, slow: list[Judged]) -> Finding:
        """Tell of CPUs of one host: there processors move the bytes, and no link is to blame."""
        return self.meta.finding(
            Status.INFO,
            _told(_worst(slow)),
            title="Collectives are slower than when this machine was measured",
            cause="On CPUs of one host the processors themselves move the bytes. They had other "
            "work: other programs, data loading, or more threads than cores.",
            action="Leave cores to each rank: OMP_NUM_THREADS, fewer workers that load data, fewer "
            "ranks. Was something else running, record again.",
            evidence=(_table(slow),),
            confidence="medium",
        )

    def _undecided(self, run: RunSummary, rows: list[Judged]) -> Finding:
        """Say why there is nothing to judge, or nothing to judge by."""
        if not any(len(one.rows) for one in run[Arrivals].ranks.values()):
            text = "No trace holds times of collectives that wait for all ranks."
            return self.meta.finding(Status.NOT_APPLICABLE, text)
        if not rows:
            text = "no collective was recorded by all ranks of its group, with nothing beside it."
        elif not any(row.expected for row in rows):
            text = "nothing is known of the links here; measure them with dsprof bench, and give "
            text += "the report --baseline FILE."
        else:
            text = "No collective is large enough to be judged by its bandwidth, and often there."
            return self.meta.finding(Status.NOT_APPLICABLE, text)
        return self.meta.finding(Status.UNKNOWN, f"Unknown: {text}")


_ACROSS = (
    "See which network NCCL chose (NCCL_DEBUG=INFO in one short run) and whether GPUDirect RDMA is "
    "on; compare adapters and counters of the hosts. Measure again with dsprof bench on the idle "
    "machine: what is still slow there is not caused by the training."
)
_WITHIN = (
    "See that direct access between the devices and shared memory are not switched off "
    "(NCCL_P2P_DISABLE, NCCL_SHM_DISABLE), and that ranks run on the CPUs near their devices. "
    "Measure again with dsprof bench on the idle machine: what is still slow there is not caused "
    "by the training."
)


def judged(run: RunSummary, thresholds: Thresholds) -> list[Judged]:
    """Return all transfers of measured steps, each with what it is held to."""
    steps, costs = run[Steps].measured, run[Costs]
    model = LinkModel.of(run[EnvironmentFacts])
    found = []
    for row in transfers(run[Arrivals], steps or None):
        if (measured := _measured(costs, row)) is not None:
            found.append(Judged(row, measured, thresholds.baseline_bytes))
            continue
        large = row.path.nodes > 1
        least = thresholds.across_nodes_bytes if large else thresholds.within_node_bytes
        found.append(Judged(row, model.expected(row.path, row.nbytes), least))
    return found


def _measured(costs: Costs, row: Transfer) -> Expected | None:
    """Return what the baseline says; None if it does not know such a group."""
    path = row.path
    across = path.nodes > 1
    cost_ns = costs.cost_ns(path.op, row.nbytes, path.group_size, crosses_nodes=across)
    factor = busbw_factor(path.op, path.group_size)
    if not cost_ns or not factor:
        return None
    return Expected(row.nbytes / cost_ns * 1e9 * factor, "the baseline", is_measured=True)


def _worst(rows: list[Judged]) -> Judged:
    return min(rows, key=lambda row: row.share or 0.0)


def _told(row: Judged) -> str:
    """Say in one sentence how fast a transfer is, and how fast it should be."""
    transfer, path = row.transfer, row.transfer.path
    where = f"across {path.nodes} hosts" if path.nodes > 1 else "within a host"
    return (
        f"{path.op} of {size(transfer.nbytes)} in {path.group} ({where}) moves "
        f"{transfer.busbw / 1e9:,.3g} GB/s; the quickest quarter of the calls reach "
        f"{transfer.quick_busbw / 1e9:,.3g} GB/s, {row.share or 0.0:.0%} of {_source(row)}."
    )


def _source(row: Judged) -> str:
    """Say what a transfer is held to."""
    if row.expected is None:
        return ""
    rate = f"{row.expected.busbw / 1e9:,.3g} GB/s"
    if row.expected.is_measured:
        return f"the {rate} of the baseline"
    return f"the {rate} that others reach at this size over {row.expected.source}"


def _table(rows: list[Judged]) -> Table:
    slowest = sorted(rows, key=lambda row: row.share or 0.0)[:_ROWS]
    return Table(
        columns=(
            Column("op"),
            Column("group"),
            Column("ranks", "count"),
            Column("hosts", "count"),
            Column("size", "bytes"),
            Column("calls", "count"),
            Column("transfer", "ns"),
            Column("bus bandwidth", "rate"),
            Column("of the quickest quarter", "rate"),
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


RULE = LowBusBandwidth()
