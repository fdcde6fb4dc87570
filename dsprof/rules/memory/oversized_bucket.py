"""oversized-bucket: buffers for reducing gradients take device memory that nothing needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.memory import Memory
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import percent, size
from dsprof.rules.engine_by_engine import of_engine
from dsprof.rules.evidence.allocator import is_short
from dsprof.rules.knowledge.buckets import zero_elements
from dsprof.rules.knowledge.deepspeed.conflicts import before_overlapping
from dsprof.rules.memory.gradient_buffers import GradientBuffers, gradient_buffers
from dsprof.rules.overlap.unhidden_reduction import overlapping
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.trace.device_counters import PEAK_RESERVED


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When buffers are in the way."""

    wasted_bytes: int = 256 << 20  # beyond the size of all gradients
    wasted_share: float = 0.02  # of the reserved memory at its peak
    pressed_share: float = 0.1  # of it, where allocations were retried


class OversizedBucket(Rule):
    """Compares `reduce_bucket_size` with the size of the model and of the device's memory.

    With contiguous gradients ZeRO allocates a buffer of the whole bucket, and with overlap_comm at
    stages 1 and 2 a second one, however small the model is.
    """

    meta = RuleMeta(
        id="oversized-bucket",
        title="Gradient buffers have a useful size",
        failing_title="Gradient buffers waste device memory",
        why="ZeRO allocates reduce_bucket_size elements, once or twice, whether gradients fill "
        "them or not: at the default, 0.9 or 1.9 GiB in half precision.",
        category="memory",
        order=490,
        needs=(Engines, Memory),
        on_cpus="The run was on CPUs: untouched pages of a buffer take no memory.",
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Compare with all gradients; under pressure, with the memory in use."""
        peaks = [m.device_max.get(PEAK_RESERVED, 0) for m in run[Memory].ranks.values()]
        made = [(one, buffers) for one in run[Engines].each if (buffers := gradient_buffers(one))]
        if not made:
            yield self.meta.not_applicable(
                "No engine with ZeRO and contiguous gradients was recorded."
            )
        elif not max(peaks, default=0) or not all(one.engines[0].parameters for one, _ in made):
            yield self.meta.unknown(
                "Unknown: the device's counters or the model's size were not recorded."
            )
        else:
            several, pressed = len(run[Engines].engines) > 1, is_short(run[Memory])
            for one, buffers in made:
                found = self._of_engine(one, buffers, max(peaks), thresholds, pressed)
                yield from of_engine(one.engines[0].engine, found) if several else found

    def _of_engine(
        self,
        engines: Engines,
        buffers: GradientBuffers,
        peak: int,
        thresholds: Thresholds,
        pressed: bool,
    ) -> Iterable[Finding]:
        parameters = engines.engines[0].parameters
        needed, advised = min(buffers.capacity, parameters), zero_elements(parameters)
        least = max(thresholds.wasted_bytes, thresholds.wasted_share * peak)
        if buffers.bytes_beyond(needed) >= least:
            yield self._wasted(engines, buffers, needed, peak, pressed)
        elif (
            pressed
            and buffers.nbytes >= thresholds.pressed_share * peak
            and buffers.capacity > advised
        ):
            yield self._pressed(engines, buffers, peak, advised)

    def _wasted(
        self, engines: Engines, buffers: GradientBuffers, needed: int, peak: int, pressed: bool
    ) -> Finding:
        wasted, patch = buffers.bytes_beyond(needed), _patch(engines, zero_elements(needed))
        return self.meta.finding(
            Status.FAIL if pressed else Status.INFO,
            f"{size(wasted)} of {size(buffers.nbytes)} of gradient buffers are never used: "
            f"reduce_bucket_size is {buffers.capacity:,}, the model has {needed:,} parameters.",
            severity=Severity.MEDIUM,
            cause="A bucket holds at most all gradients; memory beyond that is allocated but never "
            "used.",
            action=f"Set {_named(patch)}: with a bucket of {needed:,} no "
            "computation would be left to overlap with its reduction.",
            config_patch={"zero_optimization": patch},
            evidence=(_table(engines, buffers, peak),),
            confidence="high",
        )

    def _pressed(
        self, engines: Engines, buffers: GradientBuffers, peak: int, advised: int
    ) -> Finding:
        patch = _patch(engines, advised)
        slots = 2 if "overlap_comm" in patch else buffers.slots
        freed = buffers.nbytes - buffers._replace(capacity=advised, slots=slots).nbytes
        return self.meta.finding(
            Status.FAIL,
            f"Allocations were retried while gradient buffers held "
            f"{size(buffers.nbytes)}, {percent(buffers.nbytes / peak)} of the reserved memory.",
            title="Gradient buffers take scarce device memory",
            severity=Severity.MEDIUM,
            cause=f"{buffers.slots} buffers of reduce_bucket_size elements are allocated in each "
            "backward.",
            action=f"Set {_named(patch)}: that frees {size(freed)}.",
            config_patch={"zero_optimization": patch},
            evidence=(_table(engines, buffers, peak),),
            confidence="medium",
        )


def _patch(engines: Engines, elements: int) -> dict[str, Any]:
    """Return the size, and what else smaller buckets need to overlap with backward."""
    patch: dict[str, Any] = {"reduce_bucket_size": elements}
    is_defective = before_overlapping(engines.deepspeed, engines.stage)
    pipeline = engines.main is not None and engines.main.pipeline_stages > 1
    if engines.stage == 3 or is_defective or pipeline:  # a pipeline switches overlap_comm off
        return patch
    return patch | overlapping(engines)


def _named(patch: Mapping[str, Any]) -> str:
    values = (f"{value:,}" if value is not True else "true" for value in patch.values())
    return " and ".join(f'"{key}" to {value}' for key, value in zip(patch, values, strict=True))


def _table(engines: Engines, buffers: GradientBuffers, peak: int) -> Table:
    return Table(
        columns=(
            Column("reduce_bucket_size", "count"),
            Column("parameters", "count"),
            Column("buffers", "count"),
            Column("in all", "bytes"),
            Column("peak reserved", "bytes"),
            Column("share", "share"),
        ),
        rows=(
            (
                buffers.capacity,
                engines.main.parameters if engines.main else None,
                buffers.slots,
                buffers.nbytes,
                peak,
                buffers.nbytes / peak,
            ),
        ),
        caption="Buffers of one rank",
    )
