"""barrier-in-step: all ranks stop in each step to wait for each other, with nothing to exchange."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.communication import Communication
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.findings.wording import count, duration, percent, plural
from dsprof.rules.evidence.calls import (
    Calls,
    blocked_ms,
    caller,
    calls_per_step,
    calls_table,
    over_all_ranks,
    own_ms,
    share_of_step,
)
from dsprof.rules.reasons import NO_COLLECTIVE
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.rules.savings import omitting_saves
from dsprof.trace.collectives import family


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When barriers are part of the loop, and when they cost."""

    calls_per_step: float = 0.5  # of one rank; a barrier before a checkpoint is rarer
    saved_share: float = 0.01  # of the step, that it is shorter without them


class BarrierInStep(Rule):
    """Fails barriers whose own time is worth it: waiting for a late rank would only move."""

    meta = RuleMeta(
        id="barrier-in-step",
        title="Barriers in the training loop cost no time",
        failing_title="Barriers stop all ranks in the training loop",
        why="The collectives of a step already synchronise the ranks. A barrier adds its own "
        "latency, and all ranks wait there for the slowest one.",
        category="communication",
        order=200,
        needs=(Arrivals, Communication, Steps),
        needs_groups=True,
        min_steps=2,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Weigh the barriers of the measured steps."""
        rows = run[Communication].rows
        barriers = {k: r for k, r in rows.items() if family(k.op) == "barrier" and k.group_size > 1}
        barriers = over_all_ranks(barriers, run[Steps])
        if not any(kind.group_size > 1 for kind in rows):
            yield self.meta.not_applicable(NO_COLLECTIVE)
        elif barriers and calls_per_step(barriers) < thresholds.calls_per_step:
            text = f"Barriers are rare: {count(calls_per_step(barriers))} per step."
            yield self.meta.finding(Status.PASS, text)
        elif barriers:
            only = all(family(k.op) == "barrier" for k in rows if k.group_size > 1)
            yield self._judged(barriers, run, thresholds, _ORDER if only else _ACTION)

    def _judged(
        self, barriers: Calls, run: RunSummary, thresholds: Thresholds, action: str
    ) -> Finding:
        summary = f"{plural(calls_per_step(barriers), 'barrier')} per step and rank"
        table = calls_table(barriers)
        steps, cost_ms, least_ms = run[Steps], blocked_ms(barriers), own_ms(run, barriers)
        saving = omitting_saves(least_ms, cost_ms)
        if cost_ms is None:
            text = f"{summary}; their blocked time was not measured."
            return self.meta.finding(Status.INFO, text, evidence=(table,), action=action)
        costs = saving is not None and share_of_step(saving[0], steps) >= thresholds.saved_share
        waits, by = cost_ms > 4 * (least_ms or 0.0), caller(barriers)
        return self.meta.finding(
            Status.FAIL if costs else Status.INFO,
            f"{summary}: blocked time {duration(cost_ms * 1e6)} "
            f"({percent(share_of_step(cost_ms, steps))} of the step).",
            severity=Severity.MEDIUM,
            cause="Most of it is waiting for a late rank. Without the barrier, ranks would "
            "wait for it in the next collective."
            if waits and action is not _ORDER
            else f"{by.library if by else 'The program'} calls a barrier in the training loop"
            f"{f', at {by.site}' if by else ''}.",
            action=_by_library(by.library) if by else action,
            problem=f"{plural(calls_per_step(barriers), 'barrier')} per step",
            fix=f"Find what makes {by.library} call it"
            if by
            else "Remove the barrier from the loop",
            evidence=(table,),
            saving_ms_per_step=saving if costs else None,
            saving_from="other",
            confidence="medium",
        )


def _by_library(library: str) -> str:
    known = ""
    if "lightning" in library:
        known = "self.log(..., sync_dist=True) calls it for each batch: pass on_step=False, "
        known += "on_epoch=True to log once per epoch. "
    return (
        f"Find what makes {library} call it: a setting, such as one for metrics, or a call in your "
        f"program. {known}Training needs no barrier: the gradient reduction synchronises all ranks."
    )


_ACTION = (
    "Remove the barrier from the loop, or call it only before checkpoints. Training needs none: "
    "the gradient reduction synchronises all ranks. For timing, synchronise the device instead."
)
_ORDER = (
    "Remove each barrier that orders nothing: the ranks exchange nothing else. Keep one after "
    "which a rank reads what another has written, such as a file."
)
