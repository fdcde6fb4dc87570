"""Transfers beside the speed that links or a baseline promise: for a rule and for the page."""

from __future__ import annotations

from dataclasses import dataclass

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.collectives import busbw_factor
from dsprof.analysis.run.transfer_speed import Transfer, transfers
from dsprof.analysis.summary import RunSummary
from dsprof.rules.hardware.links import Expected, LinkModel


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From which sizes on transfers are judged, and when they are slow."""

    share: float = 0.5  # of what is expected
    severe_share: float = 0.2
    calls: int = 8  # isolated ones; fewer may all have met the same accident
    within_node_bytes: int = 64 << 20  # least size held to the model of a link
    across_nodes_bytes: int = 512 << 20
    baseline_bytes: int = 1 << 20  # least size held to a baseline, whose latency is measured


@dataclass(frozen=True, slots=True)
class Judged:
    """A transfer and its expected speed; `expected` is None where that is unknown."""

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


def judged(run: RunSummary, thresholds: Thresholds) -> list[Judged]:
    """Return all transfers of measured steps, each with what it is held to."""
    steps, costs = run[Steps].measured, run[BaselineCosts]
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


def _measured(costs: BaselineCosts, row: Transfer) -> Expected | None:
    """Return what the baseline says; None if it does not know such a group."""
    path = row.path
    across = path.nodes > 1
    cost_ns = costs.cost_ns(path.op, row.nbytes, path.group_size, crosses_nodes=across)
    factor = busbw_factor(path.op, path.group_size)
    if not cost_ns or not factor:
        return None
    return Expected(row.nbytes / cost_ns * 1e9 * factor, "the baseline", is_measured=True)
