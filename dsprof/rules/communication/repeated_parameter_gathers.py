"""repeated-parameter-gathers: parameters are gathered again, and nothing has changed them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.fetches import Fetches, FetchKind
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.aggregates.traffic import Traffic
from dsprof.analysis.aggregates.wire import Wire, WireKind
from dsprof.analysis.summary import RunSummary
from dsprof.rules.calls import AnyCalls, bytes_per_step, held_ms, share_of_step
from dsprof.rules.knowledge.stage3 import MAX_LIVE, MAX_LIVE_DEFAULT
from dsprof.rules.rule import Column, Finding, RuleMeta, Severity, Status, Table
from dsprof.rules.savings import Range, about
from dsprof.rules.wording import size

_LIMITS = (MAX_LIVE, "stage3_max_reuse_distance")  # one default for both


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When gathers count as repeated, and when they cost."""

    repeated_share: float = 0.1  # of the elements gathered in a step
    held_share: float = 0.01  # of the step; less is of low severity, and no saving


class RepeatedParameterGathers:
    """Parameters that forward had gathered are gathered again in backward of the same micro-step.

    That is how sharding saves memory. It is a fault where the user set ZeRO-3's limits so low that
    parameters are let go although the default would keep them.
    """

    meta = RuleMeta(
        id="repeated-parameter-gathers",
        title="Parameters are gathered once between updates",
        failing_title="Parameters are gathered again without an update in between",
        why="Parameters change when the optimizer steps. Each gather of the same values before "
        "that sends all of them once more.",
        category="communication",
        needs=(Engines, Fetches, Steps, Traffic, Wire),
        min_steps=1,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Compare what backward gathers with all that a step gathers."""
        gathered = _elements(run[Fetches], run[Traffic].rank_steps)
        whole = sum(gathered.values())
        repeated = gathered.get("backward", 0.0) + gathered.get("recomputation", 0.0)
        if not whole:
            status = Status.UNKNOWN if run[Steps].is_counted else Status.NOT_APPLICABLE
            yield self.meta.finding(status, "No gather of parameters was recorded in full detail.")
        elif repeated >= thresholds.repeated_share * whole:
            yield self._repeated(run, gathered, repeated / whole, thresholds)

    def _repeated(
        self, run: RunSummary, gathered: dict[str, float], share: float, thresholds: Thresholds
    ) -> Finding:
        engines, again = run[Engines], run[Wire].chosen(_is_again)
        low = _lowered(engines)
        held = held_ms(again)
        costs = held is None or share_of_step(held, run[Steps]) >= thresholds.held_share
        summary = (
            f"{share:.0%} of the parameters that a step gathers "
            f"({size(bytes_per_step(again))}) are gathered in backward, where forward "
            "had them already"
        )
        wait = "" if held is None else f"; it waits {held:.1f} ms a step for them"
        return self.meta.finding(
            Status.FAIL if low else Status.INFO,
            f"{summary}{wait}.",
            severity=(Severity.MEDIUM if costs else Severity.LOW) if low else Severity.NONE,
            cause=f"{' and '.join(low)} in the configuration: parameters are let go after each "
            "module."
            if low
            else _by_design(engines),
            action=_action(engines, low),
            config_patch={"zero_optimization": dict.fromkeys(low, MAX_LIVE_DEFAULT)}
            if low
            else None,
            evidence=(_by_phase(gathered),),
            saving_bytes_per_step=round(bytes_per_step(again)),
            saving_ms_per_step=_saving(again) if low and costs else None,
            saving_from="parameters",
            confidence="high" if low else "medium",
        )


def _saving(again: AnyCalls) -> Range | None:
    """Return what backward waits for its gathers, in ms of a step: they are gone altogether."""
    held = held_ms(again)
    return None if held is None else about(held)


def _is_again(kind: WireKind) -> bool:
    return kind.purpose == "parameters" and kind.phase == "backward"


def _elements(fetches: Fetches, rank_steps: int) -> dict[str, float]:
    """Return the elements that a rank gathers in a step, by phase."""
    found: dict[str, float] = {}
    for kind, sums in fetches.rows.items():
        if _gathers(kind) and rank_steps:
            found[kind.phase] = found.get(kind.phase, 0.0) + sums.elements / rank_steps
    return found


def _gathers(kind: FetchKind) -> bool:
    """Say whether it counts: a prefetch is waited for in a fetch, but for FSDP1."""
    return kind.kind == "fetch" or (kind.kind == "prefetch" and kind.library == "FSDP1")


def _lowered(engines: Engines) -> list[str]:
    """Return the limits that the user set below the default, for a model that the default keeps."""
    if engines.main is None or engines.main.parameters > MAX_LIVE_DEFAULT:
        return []
    written = {key: engines.written_zero(key) for key in _LIMITS}
    return [
        key
        for key, value in written.items()
        if isinstance(value, (int, float)) and value < MAX_LIVE_DEFAULT
    ]


def _by_design(engines: Engines) -> str:
    if engines.stage == 3:
        return (
            "ZeRO-3 lets parameters go that exceed stage3_max_live_parameters, or are used again "
            "only after stage3_max_reuse_distance: the price of the memory saved."
        )
    return (
        "FSDP lets the parameters of a unit go after its forward, and gathers them again for its "
        "backward: the price of the memory saved."
    )


def _action(engines: Engines, low: list[str]) -> str:
    if low and engines.main is not None:
        gib = engines.main.parameters * 2 / (1 << 30)
        keys = " and ".join(f'"{key}"' for key in low)
        return (
            f"Delete {keys} (default 1,000,000,000 elements). Parameters then stay until backward "
            f"is done with them: up to {gib:,.1f} GiB more on each rank, in 16 bits."
        )
    if engines.stage == 3:
        return (
            "Raise both limits if memory has room, or use stage 2: it keeps parameters whole. "
            "Without activation checkpointing there is no gather for recomputation."
        )
    return (
        "If memory has room for whole parameters: fully_shard(..., reshard_after_forward=False), "
        "or ShardingStrategy.SHARD_GRAD_OP with FSDP1. With accumulation, "
        "set_reshard_after_backward(False) keeps them for the next micro-step."
    )


def _by_phase(gathered: dict[str, float]) -> Table:
    order = sorted(gathered.items(), key=lambda item: -item[1])
    return Table(
        columns=(Column("gathered in"), Column("elements a step and rank", "count")),
        rows=tuple((phase or "outside phases", round(count)) for phase, count in order),
    )


RULE = RepeatedParameterGathers()
