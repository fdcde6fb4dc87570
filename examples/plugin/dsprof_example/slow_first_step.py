"""slow-first-step: the first step takes far longer than the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from dsprof.api import (
    Aggregate,
    Column,
    Finding,
    RankClock,
    RankTrace,
    Rule,
    RuleMeta,
    RunSummary,
    Severity,
    Status,
    Table,
)


@dataclass(frozen=True)
class FirstSteps(Aggregate):
    """Of each rank how long its first step took, and how long a later one (the median), in ns."""

    ranks: dict[int, tuple[int, float]]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> FirstSteps:
        """Read the steps of one rank."""
        first, *later = [step.end_ns - step.start_ns for step in trace.steps] or [0]
        return cls({trace.rank: (first, median(later))} if later else {})

    def merge(self, other: FirstSteps) -> FirstSteps:
        """Join the ranks of two parts of the run."""
        return FirstSteps(self.ranks | other.ranks)


@dataclass(frozen=True)
class Thresholds:
    """From where on a first step is slow."""

    times: float = 10.0  # first step / median of the later steps


class SlowFirstStep(Rule):
    """Compares the first step of each rank with its later ones."""

    meta = RuleMeta(
        id="slow-first-step",
        title="The first step is no slower than others",
        failing_title="The first step is slow",
        why="Every restart of the job pays for it.",
        category="steps",
        needs=(FirstSteps,),
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Report the ranks whose first step takes `times` as long as a later one."""
        ranks = run[FirstSteps].ranks
        if not ranks:
            yield self.meta.unknown("Unknown: no rank recorded two steps.")
        slow = {r: times for r, times in ranks.items() if times[0] > thresholds.times * times[1]}
        if slow:
            yield self.meta.finding(
                Status.FAIL,
                f"The first step takes {max(first for first, _ in slow.values()) / 1e6:.0f} ms.",
                severity=Severity.LOW,
                cause="The first step compiles, allocates, or sets up connections.",
                action="Keep caches of compiled kernels between restarts.",
                ranks=tuple(sorted(slow)),
                evidence=(_table(slow),),
                confidence="medium",
            )


def _table(slow: dict[int, tuple[int, float]]) -> Table:
    return Table(
        (Column("rank", "count"), Column("first step", "ns"), Column("later step", "ns")),
        tuple((rank, first, later) for rank, (first, later) in sorted(slow.items())),
    )


RULE: Rule = SlowFirstStep()
