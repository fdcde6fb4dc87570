"""unused-device-memory: room that could buy less communication or larger batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.logs import Logs
from dsprof.analysis.aggregates.memory import Memory
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.aggregates.traffic import Purpose, Traffic
from dsprof.analysis.rank.intent import communication_dtype
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import size
from dsprof.rules.configuration.engine_settings import EngineSettings
from dsprof.rules.evidence.allocator import is_short
from dsprof.rules.knowledge.deepspeed.combinations import refused
from dsprof.rules.knowledge.deepspeed.conflicts import AT_ODDS, before_overlapping
from dsprof.rules.memory.gradient_buffers import gradient_buffers
from dsprof.rules.reasons import ON_CPUS
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.rules.savings import is_hidden
from dsprof.trace.device_counters import DEVICE_TOTAL, PEAK_RESERVED
from dsprof.trace.dtypes import item_bytes
from dsprof.trace.schema import EngineConfig


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When there is much room."""

    free_share: float = 0.3  # of the device's memory, never reserved by any rank
    kept_share: float = 0.1  # of it: stays free after the change
    held_share: float = 0.05  # of the step; a lower stage saves none of what holds less of it


class _Option(NamedTuple):
    what: str
    needs_bytes: int
    patch: dict[str, object]  # {} where the rule cannot tell whether it would save time


class UnusedDeviceMemory(Rule):
    """Says what the memory that no rank ever reserved would suffice for.

    Sizes are those of ZeRO's paper: a lower stage keeps whole what a higher one shares out.
    """

    meta = RuleMeta(
        id="unused-device-memory",
        title="Device memory is in use",
        failing_title="Much device memory is unused",
        why="Sharding and recomputation trade time for memory. While memory stays unused, that "
        "time is wasted.",
        category="memory",
        order=510,
        needs=(Engines, Logs, Memory, Run, Steps, Traffic),
        on_cpus=ON_CPUS,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Judge by the rank that has least left."""
        rooms = {
            rank: (m.device_max[DEVICE_TOTAL], m.device_max[PEAK_RESERVED])
            for rank, m in run[Memory].ranks.items()
            if m.device_max.get(DEVICE_TOTAL) and PEAK_RESERVED in m.device_max
        }
        failed = run[Run].out_of_memory_ranks or any(
            log.out_of_memory for log in run[Logs].ranks.values()
        )
        if is_short(run[Memory]) or failed:
            yield self.meta.not_applicable(
                "Requests for device memory failed, so the unreserved memory was not available."
            )
            return
        if not rooms:
            yield self.meta.unknown("Unknown: the size of device memory was not recorded.")
            return
        rank = min(rooms, key=lambda one: rooms[one][0] - rooms[one][1])
        total, peak = rooms[rank]
        if total - peak >= thresholds.free_share * total:
            yield self._unused(run, rank, total, peak, thresholds)

    def _unused(
        self, run: RunSummary, rank: int, total: int, peak: int, thresholds: Thresholds
    ) -> Finding:
        room = round(total - peak - thresholds.kept_share * total)
        options = _options(run, thresholds.held_share)
        fitting = [option for option in options if option.needs_bytes <= room]
        best = next((option for option in fitting if option.patch), None)
        others = "a larger micro-batch, or less recomputation of activations"
        return self.meta.finding(
            Status.INFO,
            f"{size(total - peak)} of {size(total)} were never reserved on rank {rank}, "
            "the fullest.",
            cause="The model and its micro-batches need less memory than the device has.",
            action=f"Use {best.what} (needs about {size(best.needs_bytes)}), or {others}."
            if best
            else f"Try {others}.",
            config_patch={"zero_optimization": dict(best.patch)} if best else None,
            evidence=(_table(options, room),) if options else (),
            confidence="medium" if best else "low",
        )


def _options(run: RunSummary, held_share: float) -> list[_Option]:
    """Return what a lower stage and a larger bucket would need in addition, the best first."""
    engines, world = run[Engines], _data_ranks(run[Traffic])
    engine = engines.main
    if engine is None or not engines.stage or world < 2:
        return []
    shared = 1 - 1 / world
    weights = round(engine.parameters * item_bytes(engine.parameter_dtype) * shared)
    gradients = round(engine.parameters * item_bytes(communication_dtype(engine)) * shared)
    found = []
    buffers = gradient_buffers(engines)
    second = buffers.capacity * buffers.item_bytes if buffers else 0
    lower = _lower_stage(engines)
    if engines.stage == 3 and not engines.zero("offload_param") and _accepts(engines, lower):
        needed = weights + gradients + second * ("overlap_comm" in lower)
        patch = lower if _holds_step(run, "parameters", held_share) else {}
        found.append(_Option("ZeRO-2 instead of ZeRO-3", needed, patch))
    if engines.stage == 2 and engines.accumulation > 1 and _accepts(engines, lower):
        patch = lower if _holds_step(run, "gradients", held_share) else {}
        found.append(_Option("ZeRO-1 instead of ZeRO-2", gradients, patch))
    hpz = engines.zero("zero_hpz_partition_size", 1)
    if isinstance(hpz, int) and hpz > 1:
        found.clear()  # hpZ has bought less traffic with memory already
    if buffers and buffers.capacity < engine.parameters:
        larger = f"reduce_bucket_size of {2 * buffers.capacity:,}"
        found.append(_Option(larger, buffers.nbytes, {}))
    return found


def _holds_step(run: RunSummary, purpose: Purpose, share: float) -> bool:
    """Say whether a step may wait as long for what a lower stage sends less often."""
    traffic = run[Traffic]
    held_ns = sum(traffic.per_step(one.exposed_ns) for one in traffic.of(purpose).values())
    return not is_hidden(held_ns / 1e6, run[Steps], share)


def _lower_stage(engines: Engines) -> dict[str, object]:
    """Return the keys of the next lower stage, with the overlap that is the default of stage 3."""
    stage = (engines.stage or 0) - 1
    is_default = stage == 2 and engines.written_zero("overlap_comm") is None
    if is_default and not before_overlapping(engines.deepspeed, stage):
        return {"stage": stage, "overlap_comm": True}
    return {"stage": stage}


def _accepts(engines: Engines, keys: dict[str, object]) -> bool:
    """Say whether nothing that the user wrote is refused, or conflicts, only with these keys."""
    written = engines.main.written if engines.main else {}
    zero = written.get("zero_optimization")
    lower = {**(zero if isinstance(zero, dict) else {}), **keys}
    now, then = (
        EngineSettings(EngineConfig(0, config), {}, engines.deepspeed, engines.device)
        for config in (written, {**written, "zero_optimization": lower})
    )
    faults = (*refused(), *(one for one in AT_ODDS if one.severity is not Severity.NONE))
    return not any(then.holds(one) and not now.holds(one) for one in faults)


def _data_ranks(traffic: Traffic) -> int:
    """Return how many ranks share the gradients."""
    return max((use.group_size for use in traffic.of("gradients")), default=0)


def _table(options: list[_Option], room: int) -> Table:
    return Table(
        columns=(
            Column("instead"),
            Column("needs more", "bytes"),
            Column("room", "bytes"),
            Column("fits"),
        ),
        rows=tuple((o.what, o.needs_bytes, room, o.needs_bytes <= room) for o in options),
        caption="Of one rank; a tenth of the device stays free",
    )
