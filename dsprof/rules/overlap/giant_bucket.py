"""giant-bucket: gradients travel as one, so that nothing is left to compute meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.flushes import Flushes
from dsprof.analysis.aggregates.phases import Phases
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.aggregates.traffic import Traffic
from dsprof.analysis.aggregates.wire_dtypes import WireDtypes
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Range, Severity, Status, Table
from dsprof.findings.wording import count, duration, percent, size
from dsprof.rules.evidence.calls import (
    AnyCalls,
    blocked_ms,
    bytes_per_step,
    calls_per_step,
    least_blocked_ms,
    share_of_step,
)
from dsprof.rules.knowledge.deepspeed.conflicts import before_overlapping
from dsprof.rules.knowledge.giant_buckets import Giant, by_hand, of_flushes
from dsprof.rules.overlap.unhidden_reduction import stops
from dsprof.rules.reasons import NO_DETAILED_REDUCTION
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.rules.savings import device_backward_ms, hiding_saves


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When a bucket is a giant, and when that matters."""

    giant_bytes: int = 8 << 20  # smaller ones take little longer than their latency
    giant_share: float = 0.5  # of the gradients of one backward, in one collective
    held_share: float = 0.05  # of the step, held by gradients


_EXPOSED = 0.5
"""All-gathers of parameters that are exposed to this share would queue behind smaller buckets."""
_QUEUED = (
    " All-gathers of parameters, which are exposed in backward, use the same link: smaller buckets "
    "would delay them."
)
_FIRST = "Hide these all-gathers first, by prefetching: smaller buckets overlap only after that."


class GiantBucket(Rule):
    """Looks for one reduction of most gradients, after the backward that could have hidden it."""

    meta = RuleMeta(
        id="giant-bucket",
        title="Gradients are reduced in several buckets, or one bucket costs little",
        failing_title="One giant gradient bucket cannot overlap",
        why="A bucket is sent when its last gradient is computed. A bucket with all gradients is "
        "sent after backward, when no computation is left to overlap with.",
        category="overlap",
        order=280,
        needs=(BaselineCosts, Engines, Flushes, Phases, Run, Steps, Traffic, WireDtypes),
        needs_sizes=True,
        min_steps=2,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Judge the largest reduction of gradients of a backward."""
        gradients = run[WireDtypes].chosen(lambda kind: kind.purpose == "gradients")
        if not gradients:
            yield self.meta.absent(NO_DETAILED_REDUCTION, is_unknown=run[Steps].is_counted)
            return
        giant = _giant(run, gradients)
        if giant is None or giant.nbytes < thresholds.giant_bytes:
            return
        if giant.share < thresholds.giant_share:
            return
        if giant.needs_streams and run[Run].is_cpu:
            yield self.meta.not_applicable(
                "On a CPU ZeRO and FSDP reduce by synchronous calls, whatever the bucket size."
            )
        else:
            yield self._judged(run, giant, gradients, thresholds)

    def _judged(
        self, run: RunSummary, giant: Giant, gradients: AnyCalls, thresholds: Thresholds
    ) -> Finding:
        cost_ms, backward_ms = blocked_ms(gradients), _backward_ms(run)
        summary = (
            f"{giant.noun}, so one reduction of {size(giant.nbytes)} carries "
            f"{percent(giant.share)} of the gradients of a backward"
        )
        evidence = (_figures(giant, cost_ms, backward_ms),)
        own_ms = least_blocked_ms(gradients)
        if cost_ms is None or own_ms is None:
            text = f"{summary}. Its blocked time was not measured."
            return self.meta.finding(Status.INFO, text, action=giant.action, evidence=evidence)
        share = share_of_step(cost_ms, run[Steps])
        summary += f"; gradients block the step for {duration(cost_ms * 1e6)} ({percent(share)})."
        # What is waited for a late rank, smaller buckets do not hide.
        if share_of_step(own_ms, run[Steps]) < thresholds.held_share:
            return self.meta.finding(Status.PASS, summary)
        beside = _Beside.of(run, gradients, own_ms)
        is_queued = giant.is_zero and beside.is_exposed  # smaller units of FSDP hide both
        return self.meta.finding(
            Status.INFO if is_queued else Status.FAIL,
            summary,
            severity=Severity.MEDIUM,
            cause=giant.cause + _QUEUED * is_queued,
            action=_FIRST if is_queued else giant.action,
            problem=f"One bucket has {'all' if giant.share == 1 else f'{percent(giant.share)} of'} "
            "gradients",
            fix="Prefetch parameters first" if is_queued else giant.fix,
            config_patch=None if is_queued else giant.config_patch,
            evidence=evidence,
            saving_ms_per_step=_saving(run, own_ms, giant, beside, backward_ms),
            saving_from="gradients",
            confidence="medium",
        )


def _backward_ms(run: RunSummary) -> float | None:
    if not run[Run].is_cpu:
        return device_backward_ms(run[Steps])
    phase = run[Phases].rows.get("backward")
    return phase.busy_ms_per_step if phase else None


class _Beside(NamedTuple):
    """All-gathers of parameters in backward: they use the same link."""

    taken_ms: float = 0.0  # of the link, per step
    held_ms: float | None = 0.0

    @classmethod
    def of(cls, run: RunSummary, gradients: AnyCalls, own_ms: float) -> _Beside:
        gathers = run[WireDtypes].chosen(
            lambda kind: (kind.purpose, kind.phase) == ("parameters", "backward")
        )
        if not (sent := bytes_per_step(gradients)):
            return cls()
        return cls(own_ms * bytes_per_step(gathers) / sent, blocked_ms(gathers))

    @property
    def is_exposed(self) -> bool:
        """Whether smaller buckets would queue with them."""
        return self.held_ms is not None and 0 < self.taken_ms * _EXPOSED <= self.held_ms


def _saving(
    run: RunSummary, own_ms: float, giant: Giant, beside: _Beside, backward_ms: float | None
) -> Range | None:
    """Return what buckets as advised would hide behind the rest of backward."""
    if not backward_ms or beside.held_ms is None or beside.is_exposed:
        return None
    # The first bucket is not there before its part of backward is over.
    rest_ms = backward_ms * (1 - 1 / giant.parts)
    rest_ms = max(0.0, rest_ms - (beside.taken_ms - beside.held_ms))
    return hiding_saves(own_ms, rest_ms, giant.parts, run[BaselineCosts])


def _giant(run: RunSummary, gradients: AnyCalls) -> Giant | None:
    backwards = run[Traffic].reductions_per_step
    if run[Flushes].rows:
        found = of_flushes(run[Flushes], backwards)
        return _overlapping(found, run[Engines]) if found and found.is_zero else found
    is_wrapped = run[Engines].main is not None or run[Run].has_ddp
    if is_wrapped or any(kind.is_async for kind in gradients):
        return None
    is_sharded = any(kind.family == "reduce_scatter" for kind in gradients)
    calls = calls_per_step(gradients) / backwards
    return by_hand(bytes_per_step(gradients) / backwards, calls, is_sharded=is_sharded)


def _overlapping(giant: Giant, engines: Engines) -> Giant:
    """Add what else ZeRO needs to overlap smaller buckets."""
    patch = dict(giant.config_patch or {})
    action = giant.action
    if engines.stage in (1, 2) and (off := stops(engines)):
        patch["zero_optimization"] = patch["zero_optimization"] | dict.fromkeys(off, True)
        action += f" Set {' and '.join(off)} to true, too: false blocks the host at each bucket."
    action += before_overlapping(engines.deepspeed, engines.stage)
    return replace(giant, action=action, config_patch=patch)


def _figures(giant: Giant, cost_ms: float | None, backward_ms: float | None) -> Table:
    return Table(
        columns=(
            Column("reductions a backward"),
            Column("largest", "bytes"),
            Column("its share", "share"),
            Column("as advised, buckets", "count"),
            Column("blocked by gradients", "ms"),
            Column("backward, without waits", "ms"),
        ),
        rows=((count(giant.count), giant.nbytes, giant.share, giant.parts, cost_ms, backward_ms),),
    )
