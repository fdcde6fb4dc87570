"""tiny-parameter-gathers: ZeRO-3 gathers many small pieces while the model runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.communication import Communication
from dsprof.analysis.aggregates.costs import Costs
from dsprof.analysis.aggregates.engines import Engines
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
from dsprof.rules.knowledge.stage3 import (
    PERSISTENCE,
    PERSISTENCE_DEFAULT,
    joining_saves_of,
    small_gathers,
    written_number,
)
from dsprof.rules.rule import Finding, RuleMeta, Severity, Status
from dsprof.rules.savings import Range
from dsprof.rules.wording import plural

_PHASES = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When such gathers are many, and when they cost."""

    calls_per_step: float = 32.0  # of one rank
    held_share: float = 0.05  # of the step


class TinyParameterGathers:
    """Fails on a CPU only where the user lowered the persistence threshold."""

    meta = RuleMeta(
        id="tiny-parameter-gathers",
        title="Parameters are gathered in large pieces, or cost little",
        failing_title="Parameters are gathered in many tiny pieces",
        why="ZeRO-3 gathers what a module needs when it is called. Modules with few parameters, "
        "such as experts and norms, pay a latency each, in forward and in backward.",
        category="communication",
        needs=(Arrivals, Communication, Costs, Engines, Run, Steps),
        needs_sizes=True,
        min_steps=1,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Weigh the small gathers of forward and backward at stage 3."""
        if run[Engines].stage != 3:
            text = "No engine with ZeRO stage 3 was recorded."
            yield self.meta.finding(Status.NOT_APPLICABLE, text)
            return
        gathers = over_all_ranks(small_gathers(run[Communication].rows, _PHASES), run[Steps])
        if calls_per_step(gathers) >= thresholds.calls_per_step:
            yield self._judged(run, gathers, thresholds)

    def _judged(self, run: RunSummary, gathers: Calls, thresholds: Thresholds) -> Finding:
        written, held = written_number(run[Engines], PERSISTENCE), held_ms(gathers)
        lowered = written is not None and written < PERSISTENCE_DEFAULT
        costs = share_of_step(held or 0.0, run[Steps]) >= thresholds.held_share
        fails = costs and (lowered or not run[Run].is_cpu)
        calls = calls_per_step(gathers)
        took = "" if held is None else f"; waits for them take {held:.1f} ms"
        return self.meta.finding(
            Status.FAIL if fails else Status.INFO,
            f"{plural(calls, 'gather')} of {bytes_per_step(gathers) / calls / 1024:,.0f} KiB on "
            f"average in each step{took}.",
            severity=Severity.MEDIUM if fails else Severity.NONE,
            cause=f"{PERSISTENCE} is {written:,.0f} elements, so that even the smallest parameters "
            "are sharded and gathered."
            if lowered
            else "Each module is gathered when it is called, and these modules are small.",
            action=(
                f'Delete "{PERSISTENCE}" (default {PERSISTENCE_DEFAULT:,}). ' if lowered else ""
            )
            + _ACTION,
            config_patch=_patch() if lowered else None,
            evidence=(calls_table(gathers),),
            saving_ms_per_step=_saving(run, gathers) if fails and lowered else None,
            saving_from="parameters",
            confidence="medium",
        )


def _saving(run: RunSummary, gathers: Calls) -> Range | None:
    """Return what it saves to gather them after the step, once, in place of each pass."""
    passes = len({kind.phase for kind in gathers})
    return joining_saves_of(run, gathers, 1 - 1 / max(passes, 1))


def _patch() -> dict[str, Any]:
    return {"zero_optimization": {PERSISTENCE: PERSISTENCE_DEFAULT}}


_ACTION = (
    "Let ZeRO-3 treat whole blocks as one: deepspeed.utils.set_z3_leaf_modules(model, [Block]) for "
    "mixtures of experts, or stage3_module_granularity_threshold above the elements of a small "
    "module. A larger stage3_param_persistence_threshold keeps small parameters whole."
)

RULE = TinyParameterGathers()
