"""reduction-every-micro-step: gradients are reduced several times per step, not once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.memory import Memory
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.aggregates.traffic import SCALAR_BYTES, Traffic, Use, Volume
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import count, duration, plural, size
from dsprof.rules.engine_by_engine import EngineTraffic, engine_by_engine
from dsprof.rules.evidence.allocator import has_room
from dsprof.rules.reasons import NO_REDUCTION
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.rules.savings import about, is_hidden
from dsprof.trace.collectives import POINT_TO_POINT


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When repeated reductions cost time, and not only bytes."""

    held_share: float = 0.01  # of the step
    severe_share: float = 0.1  # from here on, or where it was not measured, severity is high


class ReductionEveryMicroStep(Rule):
    """Counts the micro-steps in which gradients were reduced."""

    meta = RuleMeta(
        id="reduction-every-micro-step",
        title="Gradients are reduced no more than once per step",
        failing_title="Gradients are reduced more than once per step",
        why="With accumulation over k micro-steps one reduction suffices; k of them send k "
        "times the bytes.",
        category="communication",
        order=170,
        needs=(Engines, Memory, Run, Steps, Traffic),
        needs_sizes=True,
        min_steps=1,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Compare micro-steps that reduced with steps, engine by engine."""
        accumulating = [
            one
            for one in engine_by_engine(run[Engines], run[Traffic])
            if one.traffic.rank_steps and one.traffic.micro_steps > one.traffic.rank_steps
        ]
        # A step that was skipped gives the next one more micro-steps.
        usual = median(run[Steps].parts[number].micro_steps for number in run[Steps].measured)
        if not accumulating:
            yield self.meta.not_applicable("Not applicable: each step has one micro-step.")
        elif len(run[Engines].engines) < 2 and usual < 2:
            yield self.meta.not_applicable(
                "Only some steps have several micro-steps, as after skipped steps, or where models "
                "train in turn."
            )
            return
        for one in accumulating:
            yield from one.named(self._of_engine(one, run, thresholds))

    def _of_engine(
        self, one: EngineTraffic, run: RunSummary, thresholds: Thresholds
    ) -> Iterable[Finding]:
        facts = run[Run]
        if not one.traffic.of("gradients"):
            if _is_pairwise(one.traffic) and not facts.hides_collectives:
                yield self.meta.not_applicable(_PAIRWISE)
            else:
                yield self.meta.unknown(NO_REDUCTION)
        elif one.traffic.reducing_micro_steps <= one.traffic.rank_steps:
            return
        elif one.engines.zero("zenflow"):
            yield self.meta.not_applicable(_ZENFLOW)
        elif one.traffic.backwards_again:
            yield self.meta.unknown(_CLOSURE)
        else:
            yield self._repeated(one, run, thresholds)

    def _repeated(self, one: EngineTraffic, run: RunSummary, thresholds: Thresholds) -> Finding:
        engines, traffic, steps = one.engines, one.traffic, run[Steps]
        reductions = traffic.reducing_micro_steps / traffic.rank_steps
        found = traffic.of("gradients")
        # A single rank's group sends nothing: that of experts, where each rank has its own.
        gradients = {use: volume for use, volume in found.items() if use.group_size != 1}
        spared = _spared_shares(gradients, reductions)
        nbytes = traffic.per_step(sum(volume.nbytes for volume in gradients.values()))
        extra = round(
            traffic.per_step(sum(gradients[use].nbytes * share for use, share in spared.items()))
        )
        summary = (
            f"Gradients are reduced {plural(reductions, 'time')} per step, over "
            f"{count(traffic.micro_steps / traffic.rank_steps)} micro-steps: {size(extra)} of "
            f"{size(nbytes)} per step are redundant."
        )
        evidence = Table(
            columns=(Column("reductions per step"), Column("gradient bytes per step", "bytes")),
            rows=((count(reductions), round(nbytes)), ("1", round(nbytes) - extra)),
            caption="As recorded, and with one reduction per step",
        )
        spared_ns = sum(gradients[use].exposed_ns * share for use, share in spared.items())
        spared_ms = traffic.per_step(spared_ns) / 1e6
        mean_ms = spared_ms * one.steps_share
        hidden = is_hidden(mean_ms, steps, thresholds.held_share)
        is_sharded = _is_by_design(engines, traffic, run[Run])
        if is_sharded:
            if not hidden:
                summary = f"{summary[:-1]}, with a blocked time of {duration(spared_ms * 1e6)}."
            measured = steps.exposed_share is not None and engines.stage is None
            if hidden or not (measured and has_room(run[Memory], run[Run], nbytes / reductions)):
                return self._by_design(engines, summary, evidence, extra)
        cause, action, fix = _KEPT, _HIDDEN, ""
        if is_sharded:
            room = f"({size(nbytes / reductions)} per rank)"
            cause = f"Memory has room to accumulate whole gradients {room} locally."
            action, fix = _FSDP_ACTION, "Reduce only in the last"
        elif not hidden:
            action = _ACTION if engines.stage is None else _ENGINE_ACTION
            fix = "Wrap all but the last in `no_sync()`"
        severe = not is_hidden(mean_ms, steps, thresholds.severe_share)
        return self.meta.finding(
            Status.INFO if hidden else Status.FAIL,
            summary,
            severity=Severity.HIGH if severe else Severity.MEDIUM,
            cause=cause,
            action=action,
            problem=f"A step reduces gradients in {plural(reductions, 'micro-step')}",
            fix=fix,
            evidence=(evidence,),
            saving_bytes_per_step=extra,
            saving_ms_per_step=None if hidden else about(spared_ms),
            saving_from="gradients",
            confidence="medium",
        )

    def _by_design(self, engines: Engines, summary: str, evidence: Table, extra: int) -> Finding:
        sharded = f"ZeRO-{engines.stage}" if engines.stage else "Sharding of gradients"
        whole = "parameters and gradients" if engines.stage == 3 else "gradients"
        return self.meta.finding(
            Status.INFO,
            summary,
            cause=f"{sharded} keeps one shard of the gradients on each rank, so it must reduce "
            "in each micro-step, by design.",
            action=_ZERO_ACTION.format(whole=whole) if engines.stage else _FSDP_ACTION,
            evidence=(evidence,),
            saving_bytes_per_step=extra,
            confidence="high",
        )


def _spared_shares(gradients: Mapping[Use, Volume], reductions: float) -> dict[Use, float]:
    """Return which share of each use one reduction per step would spare.

    With hybrid sharding FSDP2 may reduce-scatter in each micro-step, but all-reduce among replicas
    only in the last: `set_requires_all_reduce`.
    """
    calls: Counter[str] = Counter()
    for use, volume in gradients.items():
        calls[use.family] += volume.calls
    times = dict.fromkeys(calls, reductions)
    if calls["all_reduce"] < calls["reduce_scatter"]:
        share = calls["all_reduce"] / calls["reduce_scatter"]
        times["all_reduce"] = max(1.0, reductions * share)
    return {use: 1 - 1 / times[use.family] for use in gradients}


def _is_pairwise(traffic: Traffic) -> bool:
    """Say whether ranks only send and receive, except for scalars."""
    uses = traffic.uses.items()
    large = {use.family for use, volume in uses if volume.nbytes >= SCALAR_BYTES * volume.calls}
    return bool(large) and large <= POINT_TO_POINT


def _is_by_design(engines: Engines, traffic: Traffic, facts: Run) -> bool:
    """Say whether gradients are sharded: by the stage, or, without an engine, by the collective.

    A hook of DDP may reduce by any collective: whole gradients come of it on every rank.
    """
    if facts.has_ddp:
        return False
    if engines.stage is not None:
        return engines.stage >= 2
    # Hybrid sharding reduces among replicas by all_reduce as well.
    return any(use.family == "reduce_scatter" for use in traffic.of("gradients"))


_PAIRWISE = "Ranks only send and receive, as stages of a pipeline do."
_ZENFLOW = (
    "Not applicable: ZenFlow updates some of the parameters after each backward, and needs each "
    "reduction."
)
_CLOSURE = (
    "optimizer.step() runs backward several times. An optimizer that evaluates its closure again, "
    "such as L-BFGS, needs each reduction; accumulation inside the closure needs only the last one."
)

_ACTION = (
    "Reduce only in the last micro-step: use no_sync() around forward and backward of the others. "
    "Around backward only, no_sync() has no effect in DDP."
)
_ENGINE_ACTION = (
    "Reduce only in the last micro-step: use no_sync() around the others, or let the engine handle "
    "gradient_accumulation_steps."
)
_KEPT = "Every rank keeps whole gradients, so that they could be accumulated locally."
_HIDDEN = (
    "No change is needed for speed: computation hides the repetition. no_sync() around all "
    "micro-steps but the last saves the bytes, e.g. on a shared network."
)

_ZERO_ACTION = (
    "Use ZeRO-1 if whole {whole} fit into memory: it reduces once per step. Otherwise "
    "engine.coalesce_grad_reduction() (DeepSpeed 0.19, unless managed_gradient_accumulation is "
    "false), or a larger micro-batch with fewer micro-steps, trades memory for fewer reductions."
)
_FSDP_ACTION = (
    "If memory has room for whole gradients, keep FSDP from reducing in all micro-steps but the "
    "last: model.set_requires_gradient_sync(False) (FSDP2) or no_sync() (FSDP1). A larger "
    "micro-batch with fewer micro-steps needs no such memory."
)
