"""Small all-gathers of ZeRO-3: after the step (persistent-), and in it (tiny-parameter-gathers).

Both weigh the all-gathers of less than a megabyte against the persistence threshold: one fails
where the user raised it, the other where it is too low for the model.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.analysis.aggregates.communication import Communication
from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.fetches import Fetches
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.findings.wording import count, duration, plural, size
from dsprof.rules.evidence.calls import (
    Calls,
    blocked_ms,
    bytes_per_step,
    calls_per_step,
    calls_table,
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
from dsprof.rules.rule import Rule, RuleMeta

_PATCH = {"zero_optimization": {PERSISTENCE: PERSISTENCE_DEFAULT}}


@dataclass(frozen=True, slots=True)
class _Thresholds:
    """When such all-gathers are many, and when they cost."""

    calls_per_step: float = 16.0  # of one rank
    held_share: float = 0.02  # of the step


@dataclass(frozen=True, slots=True)
class _ThresholdsInPasses(_Thresholds):
    """Of all-gathers in forward and backward, which a few modules cause in any model."""

    calls_per_step: float = 32.0
    held_share: float = 0.05


class _SmallGathers(Rule):
    """Weighs the small all-gathers of some phases of a step, which a subclass names."""

    phases: tuple[str, ...]

    def check(self, run: RunSummary, thresholds: _Thresholds) -> Iterable[Finding]:
        """Judge the all-gathers where there are enough of them."""
        if run[Engines].stage != 3:
            yield self.meta.not_applicable("No engine with ZeRO stage 3 was recorded.")
            return
        gathers = over_all_ranks(small_gathers(run[Communication].rows, self.phases), run[Steps])
        if calls_per_step(gathers) >= thresholds.calls_per_step:
            yield self._judged(run, gathers, thresholds)

    @abstractmethod
    def _judged(self, run: RunSummary, gathers: Calls, thresholds: _Thresholds) -> Finding:
        """Say what so many all-gathers cost, and whether a setting of the user caused them."""


class PersistentParameterGathers(_SmallGathers):
    """Fails a persistence threshold that the user raised; at its default it is by design."""

    meta = RuleMeta(
        id="persistent-parameter-gathers",
        title="Few parameters are all-gathered separately after the step",
        failing_title="Small parameters are all-gathered separately after the step",
        why="Parameters below the persistence threshold stay whole on every rank, and each is "
        "all-gathered by its own collective after the optimizer changed it.",
        category="communication",
        order=250,
        needs=(Arrivals, Communication, BaselineCosts, Engines, Steps),
        needs_sizes=True,
        min_steps=1,
    )
    thresholds = _Thresholds()
    phases = ("step",)

    def _judged(self, run: RunSummary, gathers: Calls, thresholds: _Thresholds) -> Finding:
        written, cost_ms = written_number(run[Engines], PERSISTENCE), blocked_ms(gathers)
        raised = written is not None and written > PERSISTENCE_DEFAULT
        costs = share_of_step(cost_ms or 0.0, run[Steps]) >= thresholds.held_share
        fails = raised and costs
        took = "" if cost_ms is None else f"; blocked time {duration(cost_ms * 1e6)}"
        return self.meta.finding(
            Status.FAIL if fails else Status.INFO,
            f"{count(calls_per_step(gathers))} parameters are all-gathered separately in each "
            f"step{took}.",
            problem=f"{plural(calls_per_step(gathers), 'small all-gather')} per step",
            severity=Severity.MEDIUM,
            cause=f"{PERSISTENCE} is {written:,.0f} elements: parameters below it are not "
            "all-gathered with their module."
            if raised
            else f"They are below {PERSISTENCE}, so they stay whole between steps, by design.",
            action=f'Delete "{PERSISTENCE}" (default {PERSISTENCE_DEFAULT:,} elements): larger '
            "parameters are then gathered together with their module, in forward and backward."
            if raised
            else f'Where they cost too much, lower "{PERSISTENCE}": fewer parameters stay whole, '
            "and more are gathered with their module in forward and backward.",
            config_patch=_PATCH if raised else None,
            evidence=(calls_table(gathers),),
            saving_ms_per_step=joining_saves_of(run, gathers, 1.0) if fails else None,
            saving_from="other",
            confidence="medium",
        )


class TinyParameterGathers(_SmallGathers):
    """Fails on a CPU only where the user lowered the persistence threshold."""

    meta = RuleMeta(
        id="tiny-parameter-gathers",
        title="All-gathers of parameters are large, or cost little",
        failing_title="Parameters are all-gathered in many small collectives",
        why="ZeRO-3 all-gathers the parameters of a module when it is called. Each module with "
        "few parameters, such as an expert or a norm, costs a latency in forward and in backward.",
        category="communication",
        order=260,
        needs=(Arrivals, Communication, BaselineCosts, Engines, Fetches, Run, Steps),
        needs_sizes=True,
        min_steps=1,
    )
    thresholds = _ThresholdsInPasses()
    phases = ("forward", "backward")

    def _judged(self, run: RunSummary, gathers: Calls, thresholds: _Thresholds) -> Finding:
        written, cost_ms = written_number(run[Engines], PERSISTENCE), blocked_ms(gathers)
        known = _times(run)
        times, once = known or len({kind.phase for kind in gathers}), 0 < known < _AGAIN
        lowered = written is not None and written < PERSISTENCE_DEFAULT and not once
        costs = share_of_step(cost_ms or 0.0, run[Steps]) >= thresholds.held_share
        fails = costs and (lowered or not run[Run].is_cpu)
        calls = calls_per_step(gathers)
        took = "" if cost_ms is None else f"; blocked time {duration(cost_ms * 1e6)}"
        return self.meta.finding(
            Status.FAIL if fails else Status.INFO,
            f"{plural(calls, 'all-gather')} of {size(bytes_per_step(gathers) / calls)} on average "
            f"per step and rank{took}.",
            problem=f"{plural(calls, 'all-gather')} of {size(bytes_per_step(gathers) / calls)}",
            severity=Severity.MEDIUM,
            cause=f"{PERSISTENCE} is {written:,.0f} elements, so that even the smallest parameters "
            "are sharded and all-gathered."
            if lowered
            else "Each module is all-gathered when it is called, and these modules are small."
            + _ONCE * once,
            action=(
                f'Delete "{PERSISTENCE}" (default {PERSISTENCE_DEFAULT:,}). ' if lowered else ""
            )
            + _ACTION
            + _LARGER * (not once),
            config_patch=_PATCH if lowered else None,
            evidence=(calls_table(gathers),),
            saving_ms_per_step=joining_saves_of(run, gathers, 1 - 1 / times)
            if fails and lowered
            else None,
            saving_from="parameters",
            confidence="medium",
        )


def _times(run: RunSummary) -> float:
    """Return how often a step all-gathers each parameter that is shared out; 0: unknown."""
    fetches = [sums for kind, sums in run[Fetches].rows.items() if kind.kind == "fetch"]
    elements = sum(sums.elements / sums.rank_steps for sums in fetches if sums.rank_steps)
    engines = run[Engines].engines  # a fetch does not tell whose it is
    shared_out = engines[0].layout.gathered if len(engines) == 1 else 0
    return elements / shared_out if shared_out else 0.0


_AGAIN = 1.5
"""Fewer times per step, persistent parameters would be all-gathered as often: once, after it."""
_ACTION = (
    "Let ZeRO-3 treat whole blocks as one: deepspeed.utils.set_z3_leaf_modules(model, [Block]) for "
    "mixtures of experts, or stage3_module_granularity_threshold above the elements of a small "
    "module."
)
_LARGER = f" A larger {PERSISTENCE} keeps small parameters whole."
_ONCE = f" A step all-gathers each once; a larger {PERSISTENCE} would not change that."
