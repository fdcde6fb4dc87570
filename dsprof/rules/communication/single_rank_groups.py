"""single-rank-groups: collectives of a rank with itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.communication import Communication, Kind
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.rules.calls import (
    Calls,
    bytes_per_step,
    calls_per_step,
    calls_table,
    held_ms,
    over_all_ranks,
    share_of_step,
)
from dsprof.rules.rule import Finding, RuleMeta, Severity, Status
from dsprof.rules.savings import about
from dsprof.rules.wording import plural, size

_LIBRARY_ROLES = frozenset({"expert_data", "hpz"})
"""Groups that DeepSpeed makes for all layouts alike, and uses where they hold one rank, too."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When such calls are part of the loop, and when they cost."""

    calls_per_step: float = 1.0
    held_share: float = 0.01  # of the step


class SingleRankGroups:
    """Looks at groups of one rank in runs of several; a run of one rank has no others."""

    meta = RuleMeta(
        id="single-rank-groups",
        title="No collective is called for a single rank",
        failing_title="Collectives are called in groups of one rank",
        why="A collective in a single-rank group still launches, copies and waits, and changes "
        "nothing.",
        category="communication",
        needs=(Communication, Run, Steps),
        min_steps=1,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Weigh the collectives of groups of one."""
        if run[Run].first.world_size < 2:
            text = "One rank has no larger group to call them in."
            yield self.meta.finding(Status.NOT_APPLICABLE, text)
            return
        rows = run[Communication].rows
        alone = {k: row for k, row in rows.items() if k.group_size == 1 and k.on_wire}
        alone = over_all_ranks(alone, run[Steps])
        if alone and calls_per_step(alone) >= thresholds.calls_per_step:
            yield self._judged(alone, run[Steps], thresholds)

    def _judged(self, alone: Calls, steps: Steps, thresholds: Thresholds) -> Finding:
        held = held_ms(alone)
        own = {kind: row for kind, row in alone.items() if not _is_of_library(kind)}
        own_ms = held_ms(own) or 0.0
        costs = share_of_step(own_ms, steps) >= thresholds.held_share
        took = "" if held is None else f", in {held:.2f} ms"
        return self.meta.finding(
            Status.FAIL if costs else Status.INFO,
            f"{plural(calls_per_step(alone), 'collective')} a step and rank in a group of one "
            f"rank: {size(bytes_per_step(alone))} carried to where they come from{took}.",
            severity=Severity.LOW if costs else Severity.NONE,
            cause="The program, or the library, calls them whatever the size of the group.",
            action="Skip the call where the group has one rank. Where a library makes it, choose a "
            "layout in which the group has more, or leave it: little is lost.",
            evidence=(calls_table(alone),),
            saving_ms_per_step=about(own_ms) if costs else None,
            saving_from="other",
            confidence="medium",
        )


def _is_of_library(kind: Kind) -> bool:
    return kind.role in _LIBRARY_ROLES or bool(kind.requested)


RULE = SingleRankGroups()
