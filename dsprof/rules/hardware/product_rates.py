"""Gains of another precision of matrix products, where a baseline measured both."""

from __future__ import annotations

from typing import NamedTuple

from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Range, Table
from dsprof.findings.wording import count
from dsprof.rules.savings import faster_products_save

_INSTRUCTIONS = ("cpu_bf16", "cpu_fp16")


class ProductRates(NamedTuple):
    """How fast a rank multiplies matrices, by precision, in floating-point operations a second."""

    rates: dict[str, float]  # empty without a baseline

    @classmethod
    def of(cls, run: RunSummary) -> ProductRates:
        """Take them from the baseline, unless its CPU had other instructions."""
        costs, facts = run[BaselineCosts], run[EnvironmentFacts]
        there = costs.baseline.machine.precision if costs.baseline else {}
        here = {name: facts.precision.get(name, {}) for name in _INSTRUCTIONS}
        is_alike = all(there[name] in here[name] for name in here if here[name] and name in there)
        return cls(costs.flops_per_s if is_alike else {})

    def times(self, one: str, other: str) -> float:
        """Return how many times as fast `other` is as `one`; 0 where that was not measured."""
        slow, fast = self.rates.get(one), self.rates.get(other)
        return fast / slow if slow and fast else 0.0

    def compared(self, one: str, other: str) -> str:
        """Say the same as the end of a sentence, "" where that was not measured."""
        times = self.times(one, other)
        return f": {other} products are {count(times)} times as fast" if times else ""

    @property
    def tables(self) -> tuple[Table, ...]:
        """The rates as evidence."""
        columns = (Column("matrix products in"), Column("GFLOP/s of a rank", "count"))
        rows = tuple((name, round(rate / 1e9, 1)) for name, rate in self.rates.items())
        return (Table(columns, rows, "As dsprof bench measured the machine"),) if rows else ()

    def saving(
        self, steps: Steps, one: str, other: str, least_share: float, *, is_wider: bool
    ) -> Range | None:
        """Return what a step saves that multiplies in `other`.

        Wider numbers take longer on the wire: at most as much more as is exposed today.
        """
        total, count, times = steps.total, len(steps.measured), self.times(one, other)
        if times <= 1 or total.compute_ns is None or not count:
            return None
        added_ns = (total.exposed_ns or 0) if is_wider else 0
        return faster_products_save(
            total.compute_ns / count / 1e6, times, least_share, added_ns / count / 1e6
        )
