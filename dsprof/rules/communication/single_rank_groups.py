"""single-rank-groups: collectives of a rank with itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.communication import Communication
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.findings.wording import duration, plural, size
from dsprof.rules.evidence.calls import (
    Calls,
    blocked_ms,
    bytes_per_step,
    calls_per_step,
    calls_table,
    over_all_ranks,
    share_of_step,
)
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.rules.savings import about

_LIBRARY_ROLES = frozenset({"expert_data", "hpz"})
"""Groups that DeepSpeed makes for all layouts alike, and uses where they hold one rank, too."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When such calls are part of the loop, and when they cost."""

    calls_per_step: float = 1.0
    held_share: float = 0.01  # of the step


class SingleRankGroups(Rule):
    """Looks at single-rank groups in runs of several ranks."""

    meta = RuleMeta(
        id="single-rank-groups",
        title="No collective is called in a single-rank group",
        failing_title="Collectives are called in single-rank groups",
        why="A collective in a single-rank group still launches, copies and waits, and changes "
        "nothing.",
        category="communication",
        order=220,
        needs=(Communication, Run, Steps),
        needs_ranks=True,
        min_steps=1,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Weigh the collectives of single-rank groups."""
        rows = run[Communication].rows
        alone = {k: row for k, row in rows.items() if k.group_size == 1 and k.on_wire}
        alone = over_all_ranks(alone, run[Steps])
        if alone and calls_per_step(alone) >= thresholds.calls_per_step:
            yield self._judged(alone, run[Steps], thresholds)

    def _judged(self, alone: Calls, steps: Steps, thresholds: Thresholds) -> Finding:
        cost_ms = blocked_ms(alone)
        own = {
            kind: row
            for kind, row in alone.items()
            if kind.role not in _LIBRARY_ROLES and not kind.requested
        }
        own_ms = blocked_ms(own) or 0.0
        costs = share_of_step(own_ms, steps) >= thresholds.held_share
        took = "" if cost_ms is None else f", in {duration(cost_ms * 1e6)}"
        return self.meta.finding(
            Status.FAIL if costs else Status.INFO,
            f"{plural(calls_per_step(alone), 'collective')} per step and rank in a single-rank "
            f"group: {size(bytes_per_step(alone))} copied back to the same rank{took}.",
            severity=Severity.LOW,
            cause="The program, or a library, calls them without checking the size of the group.",
            problem=f"{plural(calls_per_step(alone), 'single-rank collective')} per step",
            action="Skip the call if the group has one rank. If a library makes it, choose a "
            "layout with larger groups, or leave it: it costs little.",
            evidence=(calls_table(alone),),
            saving_ms_per_step=about(own_ms) if costs else None,
            saving_from="other",
            confidence="medium",
        )
