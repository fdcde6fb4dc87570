"""Costs of communication on the machine of the run, where a baseline was given."""

from __future__ import annotations

from dataclasses import dataclass

from dsprof.analysis.baseline import NOMINAL_CONTENTION, Baseline
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.rank_trace import RankTrace


@dataclass(frozen=True, slots=True)
class BaselineCosts(Aggregate):
    """The baseline in force; no trace holds one, so `with_part` puts it into the summary."""

    baseline: Baseline | None = None

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> BaselineCosts:
        """Return an empty value: no baseline was given."""
        return cls()

    def merge(self, other: BaselineCosts) -> BaselineCosts:
        """Keep the baseline that either has."""
        return other if self.baseline is None else self

    @property
    def contention(self) -> tuple[float, float]:
        """The share of hidden communication that comes back as slower compute: low, high.

        Without a baseline it is the stated range `NOMINAL_CONTENTION`.
        """
        return NOMINAL_CONTENTION if self.baseline is None else self.baseline.contention

    @property
    def flops_per_s(self) -> dict[str, float]:
        """Return how fast one rank multiplies matrices, by precision; empty: not measured."""
        products = self.baseline.products if self.baseline else ()
        return {product.precision: product.flops_per_s for product in products}

    def cost_ns(
        self, op: str, nbytes: int, group_size: int, *, crosses_nodes: bool | None = None
    ) -> float | None:
        """Return what one `op` of `nbytes` costs, as `Baseline.cost_ns`; None without one."""
        if self.baseline is None:
            return None
        return self.baseline.cost_ns(op, nbytes, group_size, crosses_nodes=crosses_nodes)
