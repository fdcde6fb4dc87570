"""barrier-in-step: all ranks stop in each step to wait for each other, with nothing to exchange."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.communication import Communication
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.collectives import family
from dsprof.analysis.summary import RunSummary
from dsprof.rules.calls import (
    Calls,
    calls_per_step,
    calls_table,
    held_ms,
    least_held_ms,
    over_all_ranks,
    share_of_step,
)
from dsprof.rules.rule import Finding, RuleMeta, Severity, Status
from dsprof.rules.savings import omitting_saves
from dsprof.rules.wording import plural


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When barriers are part of the loop, and when they cost."""

    calls_per_step: float = 0.5  # of one rank; a barrier before a checkpoint is rarer
    saved_share: float = 0.01  # of the step, that it is shorter without them


class BarrierInStep:
    """Fails barriers whose own time is worth it: waiting for a late rank would only move."""

    meta = RuleMeta(
        id="barrier-in-step",
        title="No barrier in the training loop costs time",
        failing_title="A barrier stops all ranks in every step",
        why="The collectives of a step hold the ranks together already; a barrier adds its own "
        "latency, and makes each step as long as its slowest rank up to that line.",
        category="communication",
        needs=(Communication, Steps),
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
            text = "No collective between two or more ranks was recorded."
            yield self.meta.finding(Status.NOT_APPLICABLE, text)
        elif barriers and calls_per_step(barriers) < thresholds.calls_per_step:
            text = f"Barriers come {calls_per_step(barriers):.2g} times a step: now and then."
            yield self.meta.finding(Status.PASS, text)
        elif barriers:
            yield self._judged(barriers, run[Steps], thresholds)

    def _judged(self, barriers: Calls, steps: Steps, thresholds: Thresholds) -> Finding:
        summary = f"{plural(calls_per_step(barriers), 'barrier')} a step and rank"
        table = calls_table(barriers)
        held, saving = held_ms(barriers), omitting_saves(barriers)
        if held is None:
            text = f"{summary}; how long they hold the ranks was not measured."
            return self.meta.finding(Status.INFO, text, evidence=(table,), action=_ACTION)
        costs = saving is not None and share_of_step(saving[0], steps) >= thresholds.saved_share
        waits = held > 4 * (least_held_ms(barriers) or 0.0)
        return self.meta.finding(
            Status.FAIL if costs else Status.INFO,
            f"{summary}, held {held:.2f} ms ({share_of_step(held, steps):.1%} of the step).",
            severity=Severity.MEDIUM if costs else Severity.NONE,
            cause="Most of it is waiting for a rank that comes late, and would be spent in the "
            "next collective without the barrier."
            if waits
            else "The program calls a barrier in its training loop.",
            action=_ACTION,
            evidence=(table,),
            saving_ms_per_step=saving if costs else None,
            saving_from="other",
            confidence="medium",
        )


_ACTION = (
    "Take the barrier out of the loop, or call it only before checkpoints. Training needs none: "
    "the gradient reduction waits for every rank. For timing, synchronise the device instead."
)

RULE = BarrierInStep()
