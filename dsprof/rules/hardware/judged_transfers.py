"""Transfers beside the speed that links or a baseline promise: for a rule and for the page."""

from __future__ import annotations

from dataclasses import dataclass

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.collectives import busbw_factor
from dsprof.analysis.run.transfer_speed import Path, Transfer, transfers
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
    expected = Expectations.of(run)
    found = []
    for row in transfers(run[Arrivals], run[Steps].measured or None):
        held_to = expected.at(row.path, row.nbytes)
        least = thresholds.within_node_bytes
        if held_to and held_to.is_measured:
            least = thresholds.baseline_bytes
        elif row.path.nodes > 1:
            least = thresholds.across_nodes_bytes
        found.append(Judged(row, held_to, least))
    return found


@dataclass(frozen=True, slots=True)
class Expectations:
    """What messages may be held to: a baseline, else what others measured of the link."""

    costs: BaselineCosts
    links: LinkModel

    @classmethod
    def of(cls, run: RunSummary) -> Expectations:
        """Return those of a run."""
        return cls(run[BaselineCosts], LinkModel.of(run[EnvironmentFacts]))

    def at(self, path: Path, nbytes: int) -> Expected | None:
        """Return what a message may be held to; None where that is not known."""
        return self._measured(path, nbytes) or self.links.expected(path, nbytes)

    def _measured(self, path: Path, nbytes: int) -> Expected | None:
        """Return what the baseline says; None if it does not know such a group."""
        across = path.nodes > 1
        cost_ns = self.costs.cost_ns(path.op, nbytes, path.group_size, crosses_nodes=across)
        factor = busbw_factor(path.op, path.group_size)
        if not cost_ns or not factor:
            return None
        return Expected(nbytes / cost_ns * 1e9 * factor, "the baseline", is_measured=True)
