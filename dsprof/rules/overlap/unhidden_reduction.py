"""unhidden-reduction: ZeRO-1 or 2 reduces gradients while nothing else runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.flushes import Flushes
from dsprof.analysis.aggregates.host_waits import HostWaits
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.aggregates.traffic import Traffic
from dsprof.analysis.aggregates.wire_dtypes import WireDtypes
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Range, Severity, Status, Table
from dsprof.findings.wording import duration, percent
from dsprof.rules.evidence.calls import (
    AnyCalls,
    blocked_ms,
    calls_per_step,
    least_blocked_ms,
    share_of_step,
)
from dsprof.rules.knowledge.deepspeed.conflicts import NEVER_OVERLAPS, before_overlapping
from dsprof.rules.knowledge.releases import release
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.rules.savings import device_backward_ms, hiding_saves


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When reductions that nothing hides matter."""

    held_share: float = 0.05  # of the step, held by gradients


class UnhiddenReduction(Rule):
    """Names the key that keeps ZeRO-1 and 2 from reducing behind backward on a device."""

    meta = RuleMeta(
        id="unhidden-reduction",
        title="ZeRO overlaps gradient reduction with backward, or it costs little",
        failing_title="ZeRO does not overlap gradient reduction with backward",
        why="Stages 1 and 2 overlap reduction with backward only if overlap_comm is true and no "
        "bucket synchronises the device.",
        category="overlap",
        order=290,
        needs=(BaselineCosts, Engines, Flushes, HostWaits, Run, Steps, Traffic, WireDtypes),
        min_steps=2,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Weigh how long gradients block the step, if a key is to blame."""
        engines = run[Engines]
        gradients = run[WireDtypes].chosen(lambda kind: kind.purpose == "gradients")
        if problem := _not_applicable(run, engines):
            yield self.meta.not_applicable(problem)
            return
        cost_ms, patch = blocked_ms(gradients), overlapping(engines)
        if not gradients or cost_ms is None:
            yield self.meta.unknown("Unknown: the blocked time of gradients was not measured.")
        elif share_of_step(cost_ms, run[Steps]) < thresholds.held_share:
            return
        elif _in_backward(run, gradients) <= 1:
            if patch:
                yield self._in_one(run, cost_ms)
        elif patch:
            yield self._judged(run, gradients, cost_ms, patch)
        else:
            yield self._by_design(run, cost_ms)

    def _in_one(self, run: RunSummary, cost_ms: float) -> Finding:
        return self.meta.finding(
            Status.INFO,
            f"{_held_words(run, cost_ms)}, in one bucket a backward.",
            title="One bucket has no computation left to overlap with",
            cause="It is sent after its last gradient, at the end of backward; overlap_comm cannot "
            "change that.",
            action="Make buckets smaller (reduce_bucket_size; giant-bucket says how small), and "
            "set overlap_comm to true with them.",
            confidence="high",
        )

    def _by_design(self, run: RunSummary, cost_ms: float) -> Finding:
        of = release(run[Engines].deepspeed)
        never_overlaps = of is not None and NEVER_OVERLAPS.concerns(of)
        return self.meta.finding(
            Status.INFO,
            f"{_held_words(run, cost_ms)}; no setting causes it.",
            title=(
                "No bucket overlaps with backward in this release (DeepSpeed "
                f"{run[Engines].deepspeed})"
            )
            if never_overlaps
            else "ZeRO overlaps one bucket at a time",
            cause="Backward waits for the reduction of each bucket (DeepSpeed#7804)."
            if never_overlaps
            else "Before each bucket DeepSpeed makes backward wait for the reduction of the one "
            "before (DeepSpeed#8364).",
            action="Upgrade to DeepSpeed 0.19.0 or later."
            if never_overlaps
            else "No setting improves this; send fewer bytes.",
            confidence="medium",
        )

    def _judged(
        self, run: RunSummary, gradients: AnyCalls, cost_ms: float, patch: dict[str, Any]
    ) -> Finding:
        engines, waits = run[Engines], run[HostWaits]
        evidence = Table(
            columns=(
                Column("reductions per step", "count"),
                Column("blocked by gradients", "ms"),
                Column("host synchronisations per step", "count"),
            ),
            rows=((round(calls_per_step(gradients), 1), cost_ms, round(waits.calls_per_step, 1)),),
        )
        return self.meta.finding(
            Status.FAIL,
            f"{_held_words(run, cost_ms)}.",
            problem=f"Gradients block the step for {duration(cost_ms * 1e6)}",
            severity=Severity.MEDIUM,
            cause=_cause(engines),
            action="Set "
            + ", ".join(f'"{key}": {str(value).lower()}' for key, value in patch.items())
            + " under zero_optimization. A second bucket of memory is needed."
            + before_overlapping(engines.deepspeed, engines.stage),
            config_patch={"zero_optimization": patch},
            evidence=(evidence,),
            saving_ms_per_step=_saving(run, gradients),
            saving_from="gradients",
            confidence="medium",
        )


def _held_words(run: RunSummary, cost_ms: float) -> str:
    took = f"{duration(cost_ms * 1e6)} ({percent(share_of_step(cost_ms, run[Steps]))})"
    return f"Gradients block the step for {took} at stage {run[Engines].stage}"


def _in_backward(run: RunSummary, gradients: AnyCalls) -> float:
    """Return the buckets of one backward; each may be several reductions, one to each owner."""
    flushes, backwards = run[Flushes], run[Traffic].reductions_per_step
    if not flushes.rows:
        return calls_per_step(gradients) / backwards
    return sum(sums.flushes for sums in flushes.rows.values()) / flushes.rank_steps / backwards


def _saving(run: RunSummary, gradients: AnyCalls) -> Range | None:
    """Return what it saves to reduce behind backward; waiting for a late rank stays."""
    own_ms, backward_ms = least_blocked_ms(gradients), device_backward_ms(run[Steps])
    if own_ms is None or backward_ms is None:
        return None
    return hiding_saves(own_ms, backward_ms, _in_backward(run, gradients), run[BaselineCosts])


def _not_applicable(run: RunSummary, engines: Engines) -> str:
    if engines.stage not in (1, 2) or engines.main is None:
        return "No engine with ZeRO stage 1 or 2 was recorded."
    if run[Run].is_cpu:
        return "On a CPU DeepSpeed reduces by synchronous calls, whatever the configuration says."
    if engines.main.pipeline_stages > 1:
        return "A pipeline engine switches overlap_comm off."
    return ""


def overlapping(engines: Engines) -> dict[str, Any]:
    """Return the keys of zero_optimization that keep reductions from overlapping, as advised."""
    patch = dict.fromkeys(stops(engines), True)
    return patch if engines.zero("overlap_comm") else {"overlap_comm": True, **patch}


def stops(engines: Engines) -> list[str]:
    """Return the keys whose false makes each bucket wait for the device, at stages 1 and 2."""
    split = ["use_multi_rank_bucket_allreduce"] if engines.zero("reduce_scatter", True) else []
    keys = ["contiguous_gradients", *split]
    return [key for key in keys if engines.zero(key, True) is False]


def _cause(engines: Engines) -> str:
    if engines.zero("overlap_comm"):
        off = stops(engines)
        return (
            f"{' and '.join(off)} {'is' if len(off) == 1 else 'are'} false: with overlap_comm "
            "DeepSpeed then waits for the whole device at each bucket."
        )
    if engines.stage == 1:
        return "overlap_comm is off, the default: stage 1 reduces after backward."
    return "overlap_comm is off, the default: stage 2 reduces on the stream that backward runs on."
