"""repeated-parameter-gathers: parameters are gathered again, and nothing has changed them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.fetches import Fetches, FetchKind
from dsprof.analysis.aggregates.memory import Memory
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.aggregates.traffic import Traffic
from dsprof.analysis.aggregates.wire_dtypes import WireDtypes, WireKind
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import count, duration, percent, size
from dsprof.rules.evidence.allocator import has_room, is_short
from dsprof.rules.evidence.calls import blocked_ms, bytes_per_step, share_of_step
from dsprof.rules.knowledge.stage3 import REUSE, REUSE_DEFAULT, written_number
from dsprof.rules.reasons import NO_DETAILED_GATHER
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.rules.savings import about
from dsprof.trace.schema import EngineConfig


class _Remedy(NamedTuple):
    """Why each forward all-gathers, and what lets it keep parameters; `fix` where a call does."""

    cause: str
    action: str
    fix: str = ""


_RESHARDS = "FSDP reshards a unit after each forward."
_REMEDIES = {
    "FSDP2": _Remedy(
        _RESHARDS,
        "If memory has room for whole parameters, call model.set_reshard_after_forward(False) "
        "before these forwards, and model.set_reshard_after_forward(True) before the next one that "
        "trains.",
        "Keep them gathered in between",
    ),
    "FSDP1": _Remedy(
        _RESHARDS,
        "FSDP1 has no call that keeps parameters for some forwards. With FSDP2 (fully_shard), "
        "model.set_reshard_after_forward(False) before them does.",
    ),
    "": _Remedy(
        "ZeRO-3 releases parameters after their use.",
        "deepspeed.zero.GatheredParameters around these forwards does not help: the engine's hooks "
        "release parameters all the same. TRL removes the hooks while it generates "
        "(ds3_gather_for_generation).",
    ),
}
"""Keys are libraries as in `FetchKind`."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When all-gathers count as repeated, and when they cost."""

    repeated_share: float = 0.1  # of the elements gathered in a step
    held_share: float = 0.01  # of the step; less is of low severity, and no saving
    times: float = 6.0  # per micro-step, that forward all-gathers them; several models do it, too
    times_share: float = 0.05  # of the step, that it waits for all but the first


class RepeatedParameterGathers(Rule):
    """Parameters are gathered again in backward, and in forwards without one, as in generation.

    That is how sharding saves memory. It is a problem where the user set ZeRO-3's limit so low that
    parameters are released although the default would keep them, and memory is not short; and where
    each of many forwards, between which no parameter changes, all-gathers all of them.
    """

    meta = RuleMeta(
        id="repeated-parameter-gathers",
        title="Parameters are all-gathered once per update",
        failing_title="Parameters are all-gathered again without an update in between",
        why="Parameters change when the optimizer steps. Every further all-gather before that "
        "sends the same values again.",
        category="communication",
        order=350,
        needs=(Engines, Fetches, Memory, Run, Steps, Traffic, WireDtypes),
        needs_sizes=True,
        min_steps=1,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Compare what backward all-gathers with all that a step all-gathers."""
        gathered = _elements(run[Fetches], run[Traffic].rank_steps)
        whole = sum(gathered.values())
        repeated = gathered.get("backward", 0.0) + gathered.get("recomputation", 0.0)
        further = [*self._in_forwards(run, thresholds)] if whole else []
        is_known = any(kind.purpose == "parameters" for kind in run[WireDtypes].rows)
        yield from further
        kept = None if further else self._over_micro_steps(run, thresholds)
        if kept:
            yield kept
        elif not whole:
            yield self.meta.absent(NO_DETAILED_GATHER, is_unknown=run[Steps].is_counted)
        elif is_known and not run[WireDtypes].chosen(_is_again):
            if further:
                return
            text = "Backward all-gathers nothing: its parameters stay, or were prefetched."
            yield self.meta.finding(Status.PASS, text)
        elif repeated >= thresholds.repeated_share * whole:
            yield self._repeated(run, gathered, repeated / whole, thresholds)

    def _in_forwards(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Judge forwards without a backward: each all-gathers what the one before released."""
        times, cost_ms = _times(run), blocked_ms(run[WireDtypes].chosen(_is_of_forward))
        if not cost_ms or times < thresholds.times:
            return
        saved_ms = cost_ms * (times - 1) / times
        if share_of_step(saved_ms, run[Steps]) < thresholds.times_share:
            return
        remedy = _REMEDIES[max(kind.library for kind in run[Fetches].rows if _gathers(kind))]
        fails = bool(remedy.fix) and not is_short(run[Memory])
        yield self.meta.finding(
            Status.FAIL if fails else Status.INFO,
            f"Forward all-gathers the parameters {count(times)} times per micro-step, as in "
            f"generation or evaluation: blocked time {duration(cost_ms * 1e6)} per step.",
            title="Parameters are all-gathered anew in many forwards",
            severity=Severity.MEDIUM,
            cause=f"{remedy.cause} Parameters change only when the optimizer steps.",
            action=remedy.action,
            problem=f"Forward all-gathers parameters {count(times)} times per micro-step",
            fix=remedy.fix,
            evidence=(_by_phase(_elements(run[Fetches], run[Traffic].rank_steps)),),
            saving_ms_per_step=about(saved_ms) if fails else None,
            saving_from="parameters",
            confidence="medium",
        )

    def _over_micro_steps(self, run: RunSummary, thresholds: Thresholds) -> Finding | None:
        """Judge micro-steps of FSDP2 between two updates, if memory has room to keep parameters."""
        micro_steps = run[Traffic].micro_steps / max(run[Traffic].rank_steps, 1)
        forward, again = (run[WireDtypes].chosen(one) for one in (_is_of_forward, _is_again))
        first_ms, again_ms = blocked_ms(forward), blocked_ms(again)
        is_fsdp2 = any(kind.library == "FSDP2" for kind in run[Fetches].rows)
        if not is_fsdp2 or micro_steps <= 1 or first_ms is None or again_ms is None:
            return None
        times = max(_times(run) * micro_steps, 1.0)
        whole = bytes_per_step(forward) / times
        saved_ms = again_ms + first_ms * (1 - 1 / times)
        share = share_of_step(saved_ms, run[Steps])
        if share < thresholds.times_share or not has_room(run[Memory], run[Run], whole):
            return None
        repeated = bytes_per_step(again) + bytes_per_step(forward) - whole
        phases = "forward and backward" if again else "forward"
        return self.meta.finding(
            Status.FAIL,
            f"The parameters are all-gathered in {phases} of {count(micro_steps)} "
            f"micro-steps: {size(repeated)} per step are redundant, with a blocked time of "
            f"{duration(saved_ms * 1e6)}.",
            severity=Severity.HIGH if share >= 2 * thresholds.times_share else Severity.MEDIUM,
            cause=f"FSDP2 reshards after {phases if again else 'backward'}, though memory has room "
            f"for whole parameters ({size(whole)} per rank).",
            action="Call model.set_reshard_after_forward(False), and in all micro-steps but the "
            "last model.set_reshard_after_backward(False)."
            if again
            else "Call model.set_reshard_after_backward(False) in all micro-steps but the last.",
            problem=f"Parameters are all-gathered in each of {count(micro_steps)} micro-steps",
            fix="Keep them gathered in between",
            evidence=(_by_phase(_elements(run[Fetches], run[Traffic].rank_steps)),),
            saving_bytes_per_step=round(repeated),
            saving_ms_per_step=about(saved_ms),
            saving_from="parameters",
            confidence="medium",
        )

    def _repeated(
        self, run: RunSummary, gathered: dict[str, float], share: float, thresholds: Thresholds
    ) -> Finding:
        engines, again = run[Engines], run[WireDtypes].chosen(_is_again)
        low = None if is_short(run[Memory]) else _low_reuse(engines, gathered)
        fails = low is not None
        cost_ms = blocked_ms(again)
        costs = cost_ms is None or share_of_step(cost_ms, run[Steps]) >= thresholds.held_share
        summary = (
            f"{percent(share)} of the parameters that a step all-gathers "
            f"({size(bytes_per_step(again))}) are all-gathered again in backward, "
            "after forward"
        )
        wait = "" if cost_ms is None else f"; blocked time {duration(cost_ms * 1e6)} per step"
        return self.meta.finding(
            Status.FAIL if fails else Status.INFO,
            f"{summary}{wait}.",
            severity=Severity.MEDIUM if costs else Severity.LOW,
            cause=f"{REUSE} is {low:,.0f} elements: parameters whose next use is further away are "
            "released after each use."
            if fails
            else _by_design(engines),
            action=_keep(engines) if fails else _by_choice(engines),
            problem=f"{percent(share)} of parameters are all-gathered twice",
            config_patch={"zero_optimization": {REUSE: REUSE_DEFAULT}} if fails else None,
            evidence=(_by_phase(gathered),),
            saving_bytes_per_step=round(bytes_per_step(again)),
            saving_ms_per_step=about(cost_ms) if fails and costs and cost_ms is not None else None,
            saving_from="parameters",
            confidence="high" if fails else "medium",
        )


def _is_again(kind: WireKind) -> bool:
    return kind.purpose == "parameters" and kind.phase == "backward"


def _is_of_forward(kind: WireKind) -> bool:
    return kind.purpose == "parameters" and kind.phase == "forward"


def _times(run: RunSummary) -> float:
    """Return how often forward all-gathers the parameters in a micro-step; 0: unknown."""
    of_forward = {
        kind: sums
        for kind, sums in run[Fetches].rows.items()
        if kind.phase == "forward" and _gathers(kind)
    }
    main, micro_steps = run[Engines].main, run[Traffic].micro_steps
    if units := {kind.module for kind in of_forward} - {""}:
        gathers = sum(sums.calls for sums in of_forward.values()) / len(units)
    elif main is not None:
        elements = sum(sums.elements for sums in of_forward.values())
        gathers = elements / max(_elements_of_model(main), 1)
    else:
        return 0.0
    return gathers / micro_steps if micro_steps else 0.0


def _elements(fetches: Fetches, rank_steps: int) -> dict[str, float]:
    """Return the elements that a rank all-gathers in a step, by phase."""
    found: dict[str, float] = {}
    for kind, sums in fetches.rows.items():
        if _gathers(kind) and rank_steps:
            found[kind.phase] = found.get(kind.phase, 0.0) + sums.elements / rank_steps
    return found


def _gathers(kind: FetchKind) -> bool:
    """Say whether it counts: a prefetch is waited for in a fetch, but for FSDP1."""
    return kind.kind == "fetch" or (kind.kind == "prefetch" and kind.library == "FSDP1")


def _low_reuse(engines: Engines, gathered: dict[str, float]) -> float | None:
    """Return the distance that the user wrote, where it releases what the default would keep.

    It counts the elements of the modules that run between two uses of a parameter. Those of the
    first module lie furthest apart: the whole model runs forward, and backward again.
    """
    written = written_number(engines, REUSE)
    if engines.main is None or written is None:
        return None
    passes = 3 if gathered.get("recomputation") else 2
    furthest = passes * _elements_of_model(engines.main)
    return written if written < furthest <= REUSE_DEFAULT else None


def _elements_of_model(engine: EngineConfig) -> int:
    """Return the elements of all parameters: at stage 3 frozen ones are gathered as well."""
    return max(engine.layout.gathered + engine.layout.persistent, engine.parameters)


def _by_design(engines: Engines) -> str:
    if engines.stage == 3:
        return (
            f"ZeRO-3 releases parameters that are used again only after {REUSE} (default "
            f"{REUSE_DEFAULT:,} elements). That saves memory."
        )
    return (
        "FSDP reshards a unit after its forward, and all-gathers it again for its backward. "
        "That saves memory."
    )


def _keep(engines: Engines) -> str:
    nbytes = _elements_of_model(engines.main) * 2 if engines.main else 0
    return (
        f'Delete "{REUSE}" (default {REUSE_DEFAULT:,} elements). Parameters then stay until '
        f"backward is done with them: up to {size(nbytes)} more on each rank, in 16 bits."
    )


def _by_choice(engines: Engines) -> str:
    if engines.stage == 3:
        return (
            f'If memory has room, raise "{REUSE}" (the distance from forward to backward is '
            "twice the parameters of the model, with activation checkpointing three times), or use "
            "stage 2: it keeps parameters whole."
        )
    return (
        "If memory has room for whole parameters, use "
        "fully_shard(..., reshard_after_forward=False), "
        "or ShardingStrategy.SHARD_GRAD_OP with FSDP1. With accumulation, "
        "set_reshard_after_backward(False) keeps them for the next micro-step."
    )


def _by_phase(gathered: dict[str, float]) -> Table:
    order = sorted(gathered.items(), key=lambda item: -item[1])
    return Table(
        columns=(Column("all-gathered in"), Column("elements per step and rank", "count")),
        rows=tuple((phase or "outside phases", round(count)) for phase, count in order),
    )
