"""communication-buffer-pressure: what is held for communication takes much of the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from dsprof.analysis.aggregates.buffers import Buffers, RankBuffers
from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.memory import Memory
from dsprof.analysis.rank.buffer_levels import Gathered
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import percent, size
from dsprof.rules.evidence.allocator import is_short
from dsprof.rules.knowledge.stage3 import PREFETCH, PREFETCH_DEFAULT, REUSE
from dsprof.rules.memory.gradient_buffers import gradient_buffers
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.trace.device_counters import PEAK_RESERVED

_BUCKETS = "gradient buckets of ZeRO"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When buffers are worth a word."""

    share: float = 0.25  # of the reserved memory at its peak
    kept_share: float = 0.9  # of FSDP's units gathered at once: none of them is resharded


class _Part(NamedTuple):
    what: str
    nbytes: int
    action: str
    zero: dict[str, Any] | None = None  # what to set under zero_optimization


class _Held(NamedTuple):
    rank: int
    parts: list[_Part]
    peak: int

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def share(self) -> float:
        return self.nbytes / self.peak


class CommunicationBufferPressure(Rule):
    """Adds up buckets and gathered parameters, and compares them with the peak of the device."""

    meta = RuleMeta(
        id="communication-buffer-pressure",
        title="Communication buffers take little device memory",
        failing_title="Communication buffers take scarce device memory",
        why="Gathered parameters and gradient buckets take memory that activations or a larger "
        "micro-batch could use.",
        category="memory",
        order=500,
        needs=(Buffers, Engines, Memory),
        on_cpus="The run was on CPUs: buffers cannot be distinguished from other host memory.",
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Judge by the rank on which they take the largest share."""
        peaks = {
            rank: peak
            for rank, memory in run[Memory].ranks.items()
            if (peak := memory.device_max.get(PEAK_RESERVED, 0))
        }
        found = {
            rank: list(_parts(run[Engines], buffers, thresholds))
            for rank, buffers in run[Buffers].ranks.items()
        }
        if not any(found.values()):
            yield self._nothing(run[Buffers])
        elif not peaks.keys() & found.keys():
            yield self.meta.unknown("Unknown: no counters of the device were recorded.")
        else:
            held = [_Held(rank, found[rank], peaks[rank]) for rank in peaks.keys() & found.keys()]
            yield self._judged(run, max(held, key=lambda one: (one.share, -one.rank)), thresholds)

    def _nothing(self, buffers: Buffers) -> Finding:
        if any(one.gathered is None for one in buffers.ranks.values()):
            return self.meta.unknown("Unknown: no measured step was recorded in full detail.")
        return self.meta.not_applicable("No buckets and no gathered parameters were recorded.")

    def _judged(self, run: RunSummary, held: _Held, thresholds: Thresholds) -> Finding:
        words = (
            f"Communication holds up to {size(held.nbytes)}, {percent(held.share)} of the reserved "
            f"memory at its peak (rank {held.rank})"
        )
        if held.share < thresholds.share:
            return self.meta.finding(Status.PASS, f"{words}.", evidence=(_table(held),))
        largest = max(held.parts, key=lambda part: part.nbytes)
        # Buckets of ZeRO are what oversized-bucket judges.
        is_fault = is_short(run[Memory]) and largest.what != _BUCKETS
        retried = "; allocations were retried" if is_fault else ""
        return self.meta.finding(
            Status.FAIL if is_fault else Status.INFO,
            f"{words}{retried}. Largest: {largest.what}, {size(largest.nbytes)}.",
            title="" if is_fault else "Communication buffers take much of the device memory",
            severity=Severity.MEDIUM,
            ranks=(held.rank,),
            cause="They are allocated in addition to the model's own memory.",
            action=largest.action if is_fault else f"No change is needed. {largest.action}",
            config_patch={"zero_optimization": largest.zero} if is_fault and largest.zero else None,
            evidence=(_table(held),),
            confidence="medium",
        )


def _parts(engines: Engines, rank: RankBuffers, thresholds: Thresholds) -> Iterable[_Part]:
    buckets = sum(made.nbytes for one in engines.each if (made := gradient_buffers(one)))
    if buckets:
        action = 'Lower "reduce_bucket_size" to free memory; it costs more calls.'
        yield _Part(_BUCKETS, buckets, action)
    if rank.gathered is not None and rank.gathered.elements:
        if rank.units:
            yield _gathered_by_fsdp(rank.gathered, rank.units, thresholds)
        else:
            yield _gathered_by_zero(engines, rank.gathered.nbytes)
    if rank.reduced_bytes:
        action = "Apply fully_shard to smaller modules: a unit is reduced as a whole."
        yield _Part("the largest FSDP reduce-scatter", rank.reduced_bytes, action)
    if rank.ddp_bytes:
        action = "Pass gradient_as_bucket_view=True to DDP: gradients "
        action += "are then stored in the buckets, not in addition to them."
        yield _Part("buckets of DDP", rank.ddp_bytes, action)


def _gathered_by_zero(engines: Engines, nbytes: int) -> _Part:
    """Advise what is not set yet: to release parameters after use, then to prefetch less."""
    engine = next((one for one in engines.each if one.stage == 3), engines)
    what = "parameters gathered by ZeRO-3"
    if engine.zero(REUSE, 1):
        action = (
            f'Set "{REUSE}" to 0: the parameters of each module are then released after use, and '
        )
        return _Part(what, nbytes, f"{action}gathered again in backward.", {REUSE: 0})
    prefetch = engine.zero(PREFETCH, PREFETCH_DEFAULT)
    if isinstance(prefetch, int) and prefetch > 1:
        action = f'"{REUSE}" is already 0. Set "{PREFETCH}" to {prefetch // 2:,} to prefetch less.'
        return _Part(what, nbytes, action, {PREFETCH: prefetch // 2})
    action = "No parameters are kept or prefetched; the largest module sets the peak. "
    return _Part(what, nbytes, f"{action}Split it, or do not mark it as a leaf module.")


def _gathered_by_fsdp(gathered: Gathered, units: int, thresholds: Thresholds) -> _Part:
    action = "Apply fully_shard to smaller modules: a unit is gathered as a whole."
    if gathered.elements >= thresholds.kept_share * units:
        action = (
            "All units are gathered at once. Set reshard_after_forward=True (FSDP1: FULL_SHARD): "
        )
        action += "each is then resharded after its forward, and gathered again in backward."
    return _Part("parameters gathered by FSDP", gathered.nbytes, action)


def _table(held: _Held) -> Table:
    return Table(
        columns=(Column("held for"), Column("at most", "bytes"), Column("share", "share")),
        rows=tuple((part.what, part.nbytes, part.nbytes / held.peak) for part in held.parts),
        caption=f"Rank {held.rank}, of {size(held.peak)} reserved at the peak",
    )
