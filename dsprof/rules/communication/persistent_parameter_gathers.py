"""persistent-parameter-gathers: ZeRO-3 gathers its small parameters one by one after the step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.communication import Communication
from dsprof.analysis.aggregates.costs import Costs
from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.rules.calls import (
    Calls,
    calls_per_step,
    calls_table,
    held_ms,
    over_all_ranks,
    share_of_step,
)
from dsprof.rules.knowledge.stage3 import (
    PERSISTENCE,
    PERSISTENCE_DEFAULT,
    joining_saves_of,
    small_gathers,
    written_number,
)
from dsprof.rules.rule import Finding, RuleMeta, Severity, Status
from dsprof.rules.savings import Range
from dsprof.rules.wording import count


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When such gathers are many, and when they cost."""

    calls_per_step: float = 16.0  # of one rank
    held_share: float = 0.02  # of the step


class PersistentParameterGathers:
    """Fails a persistence threshold that the user raised; at its default it is by design."""

    meta = RuleMeta(
        id="persistent-parameter-gathers",
        title="Few parameters are gathered one by one after the step",
        failing_title="Small parameters are gathered one by one after the step",
        why="Parameters below the persistence threshold stay whole on every rank, and each is "
        "gathered by a collective of its own when the optimizer has changed it.",
        category="communication",
        needs=(Arrivals, Communication, Costs, Engines, Steps),
        needs_sizes=True,
        min_steps=1,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Weigh the gathers in the step phase of stage 3."""
        if run[Engines].stage != 3:
            text = "No engine with ZeRO stage 3 was recorded."
            yield self.meta.finding(Status.NOT_APPLICABLE, text)
            return
        gathers = over_all_ranks(small_gathers(run[Communication].rows, ("step",)), run[Steps])
        if calls_per_step(gathers) >= thresholds.calls_per_step:
            yield self._judged(run, gathers, thresholds)

    def _judged(self, run: RunSummary, gathers: Calls, thresholds: Thresholds) -> Finding:
        written, held = written_number(run[Engines], PERSISTENCE), held_ms(gathers)
        raised = written is not None and written > PERSISTENCE_DEFAULT
        costs = share_of_step(held or 0.0, run[Steps]) >= thresholds.held_share
        fails = raised and costs
        took = "" if held is None else f"; they hold it {held:.1f} ms"
        return self.meta.finding(
            Status.FAIL if fails else Status.INFO,
            f"{count(calls_per_step(gathers))} parameters are gathered one by one in each "
            f"step{took}.",
            severity=Severity.MEDIUM if fails else Severity.NONE,
            cause=f"{PERSISTENCE} is {written:,.0f} elements: parameters below it are not gathered "
            "with their module."
            if raised
            else f"They are below {PERSISTENCE}, and stay whole between steps: by design.",
            action=f'Delete "{PERSISTENCE}" (default {PERSISTENCE_DEFAULT:,} elements): larger '
            "parameters are then gathered together with their module, in forward and backward."
            if raised
            else f'Where they cost too much, lower "{PERSISTENCE}": fewer parameters stay whole, '
            "and more are gathered with their module in forward and backward.",
            config_patch={"zero_optimization": {PERSISTENCE: PERSISTENCE_DEFAULT}}
            if raised
            else None,
            evidence=(calls_table(gathers),),
            saving_ms_per_step=_saving(run, gathers) if fails else None,
            saving_from="other",
            confidence="medium",
        )


def _saving(run: RunSummary, gathers: Calls) -> Range | None:
    """Return what it saves to send the same bytes with the gathers that forward makes anyway."""
    return joining_saves_of(run, gathers, 1.0)


RULE = PersistentParameterGathers()
