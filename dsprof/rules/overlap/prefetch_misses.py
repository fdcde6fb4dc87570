"""prefetch-misses: ZeRO-3 all-gathers parameters on demand, although it may prefetch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.fetches import Fetches
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.aggregates.wait_causes import (
    GATHERED_AHEAD,
    GATHERED_WHEN_NEEDED,
    WaitCauses,
)
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Details, Finding, Severity, Status
from dsprof.findings.wording import duration, percent
from dsprof.rules.evidence.calls import share_of_step
from dsprof.rules.evidence.waits import Waits, waits_table
from dsprof.rules.knowledge.stage3 import (
    MAX_LIVE,
    MAX_LIVE_DEFAULT,
    PREFETCH,
    PREFETCH_DEFAULT,
    low_max_live,
    written_number,
)
from dsprof.rules.rule import Rule, RuleMeta


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When misses are many, and when they cost."""

    missed_share: float = 0.5  # of the bytes that forward and backward gather
    held_share: float = 0.05  # of the step, in waits for all-gathers that were not prefetched


class PrefetchMisses(Rule):
    """Compares what was gathered ahead with what was gathered when its module was called.

    Prefetching that is switched off is covered by low-comm-overlap.
    """

    meta = RuleMeta(
        id="prefetch-misses",
        title="Parameters are mostly prefetched, or their waits are short",
        failing_title="Parameters are all-gathered on demand, not prefetched",
        why="An all-gather that starts when its module is called is fully exposed; one that starts "
        "a module earlier overlaps with that module.",
        category="overlap",
        order=310,
        needs=(WaitCauses, Engines, Fetches, Steps),
        min_steps=2,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Weigh the all-gathers of forward and backward by how they were started."""
        engines, steps = run[Engines], run[Steps]
        missed, ahead = (_named(run[WaitCauses], n) for n in (GATHERED_WHEN_NEEDED, GATHERED_AHEAD))
        if engines.stage != 3 or not missed + ahead:
            yield self.meta.absent(
                "No all-gather of ZeRO-3 was recorded in full detail.",
                is_unknown=engines.stage == 3 and steps.is_counted,
            )
        elif engines.zero(PREFETCH) == 0:
            yield self.meta.not_applicable(
                f"{PREFETCH} is 0: nothing is prefetched. low-comm-overlap covers the cost."
            )
        elif any(sums.blocked.exposed_ms_per_step is None for _, sums in missed):
            yield self.meta.unknown("Unknown: waits for these all-gathers were not measured.")
        else:
            yield self._judged(run, missed, ahead, thresholds)

    def _judged(
        self, run: RunSummary, missed: Waits, ahead: Waits, thresholds: Thresholds
    ) -> Finding:
        sent, early = (sum(s.blocked.bytes_per_step for _, s in rows) for rows in (missed, ahead))
        share = sent / (sent + early) if sent + early else 0.0
        cost_ms = sum(sums.blocked.exposed_ms_per_step or 0.0 for _, sums in missed)
        summary = (
            f"{percent(share)} of the bytes that forward and backward all-gather were not "
            f"prefetched; waits for these take {duration(cost_ms * 1e6)} per step "
            f"({percent(share_of_step(cost_ms, run[Steps]))})."
        )
        costs = share_of_step(cost_ms, run[Steps]) >= thresholds.held_share
        if share < thresholds.missed_share or not costs:
            return self.meta.finding(Status.PASS, summary)
        told = _reason(run[Engines], run[Fetches])
        lowered = "config_patch" in told
        waits = sorted(
            [*missed, *ahead], key=lambda row: -(row[1].blocked.exposed_ms_per_step or 0.0)
        )
        return self.meta.finding(
            Status.FAIL if lowered else Status.INFO,
            summary,
            **Details(
                severity=Severity.MEDIUM,
                evidence=(waits_table(waits),),
                confidence="medium",
            )
            | told,
        )


def _reason(engines: Engines, fetches: Fetches) -> Details:
    """Return cause, action and, where a setting was lowered, the patch."""
    live, prefetch = low_max_live(engines, fetches), written_number(engines, PREFETCH)
    if live is not None:
        return {
            "cause": f"{MAX_LIVE} limits gathered parameters to {live:,} elements: those in use "
            "leave no room to prefetch.",
            "action": f'Raise "{MAX_LIVE}" as far as memory allows, or delete it (default '
            f"{MAX_LIVE_DEFAULT:,}).",
            "config_patch": {"zero_optimization": {MAX_LIVE: MAX_LIVE_DEFAULT}},
        }
    if prefetch is not None and prefetch < PREFETCH_DEFAULT:
        return {
            "cause": f"{PREFETCH} is {prefetch:,.0f} elements: larger modules are not prefetched.",
            "action": f'Raise "{PREFETCH}" to the elements of one or two layers, or delete it '
            f"(default {PREFETCH_DEFAULT:,}).",
            "config_patch": {"zero_optimization": {PREFETCH: PREFETCH_DEFAULT}},
        }
    return {
        "cause": "ZeRO-3 prefetches in the module order of the previous step. "
        "The first module of a pass, and modules whose order changes, are not prefetched.",
        "action": "Set log_trace_cache_warnings in zero_optimization to see whether "
        "modules are skipped or reordered between steps. Mark blocks whose order changes as leaf "
        "modules.",
    }


def _named(awaits: WaitCauses, name: str) -> Waits:
    """Return the all-gathers of ZeRO-3 in forward and backward that were started in this way."""
    return [
        (what, sums)
        for what, sums in awaits.rows.items()
        if not what.library and what.name == name and what.phase in ("forward", "backward")
    ]
