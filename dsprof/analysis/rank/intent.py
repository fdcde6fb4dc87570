"""The traffic that a configuration asks for: operations and bytes of one rank.

What DeepSpeed's optimizers issue stage by stage, as tests/dist/test_truth_table.py measures it.
Bytes are those of nccl-tests: of the whole array.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dsprof.analysis.summary import Sums
from dsprof.trace.dtypes import item_bytes
from dsprof.trace.schema import EngineConfig

Kind = Literal["gradients", "parameters", "update", "small", "other"]
"""`update`: parameters after the optimizer step; `small`: norms, flags, losses."""

_NOT_MODELLED = ("zero_quantized_weights", "zero_quantized_gradients", "zenflow")
_COMPRESSING = ("onebit", "zeroone", "muon")
"""Optimizers that communicate by themselves."""


class Demand(NamedTuple):
    """Requested traffic: by which collectives, and why."""

    kind: Kind
    families: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Span(Sums):
    """From `low` to `high`, both included."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Expected(Sums):
    """Sums over steps and ranks; `calls` is None where the configuration does not tell."""

    calls: Span | None
    nbytes: Span


class Course(NamedTuple):
    """How far a rank got: what multiplies the traffic of one step."""

    steps: int
    flushes: int
    group_size: int  # ranks that share the gradients
    groups: int  # that reduce gradients: experts have groups of their own


def obstacle(engine: EngineConfig) -> str:
    """Return the feature whose traffic is not modelled; "" if there is none."""
    zero = _zero(engine)
    on = [key for key in _NOT_MODELLED if zero.get(key)]
    if on and zero.get("stage"):
        return on[0]
    for section in ("torch_autocast", "compile"):
        settings = engine.written.get(section)
        keys = ("enabled", "deepcompile")
        if isinstance(settings, dict) and any(settings.get(key) is True for key in keys):
            return section
    optimizer = engine.written.get("optimizer")
    name = str(optimizer.get("type", "")) if isinstance(optimizer, dict) else ""
    return name if name.lower().startswith(_COMPRESSING) else ""


def demands_of_zero(engine: EngineConfig, course: Course) -> Iterator[tuple[Demand, Expected]]:
    """Yield what an engine of a ZeRO stage asks of one rank."""
    stage = stage_of(engine)
    if course.group_size < 2:
        return
    yield _gradients(engine, stage, course)
    if stage in (1, 2) or engine.layout.flat:
        yield _gathered_flat(engine, course)
    if stage == 3 and engine.layout.gathered:
        yield _fetched(engine, course)
    if stage == 3 and engine.layout.persistent:
        yield _persistent(engine, course)


def demands_of_forwards(
    engine: EngineConfig, forwards: int, group_size: int
) -> Iterator[tuple[Demand, Expected]]:
    """Yield what an engine that never trains asks of one rank, as a reference model in RLHF."""
    if stage_of(engine) == 3 and engine.layout.gathered and group_size > 1:
        nbytes = engine.layout.gathered * _parameter_bytes(engine) * forwards
        demand = Demand("parameters", (_fetching(engine),), "once a forward")
        yield demand, Expected(None, Span(nbytes, nbytes))


def stage_of(engine: EngineConfig) -> int:
    """Return the ZeRO stage at which the engine reduces; BF16_Optimizer reduces as stage 0 does."""
    stage = _zero(engine).get("stage", 0)
    if engine.optimizer == "BF16_Optimizer":
        return 0
    return stage if isinstance(stage, int) else 0


def accumulation_of(engine: EngineConfig) -> int:
    """Return the micro-steps of an optimizer step, as configured."""
    steps = engine.effective.get("gradient_accumulation_steps", 1)
    return steps if isinstance(steps, int) and steps > 0 else 1


def passes_of(engine: EngineConfig) -> int:
    """Return how often a step is to reduce gradients."""
    return accumulation_of(engine) if stage_of(engine) >= 2 else 1


def communication_dtype(engine: EngineConfig) -> str:
    """Return the dtype in which gradients should be sent."""
    return engine.communication_dtype or engine.parameter_dtype or "float32"


class Terms(NamedTuple):
    """In which terms differences are explained: those of the configuration, where there is one."""

    gradient_dtype: str = ""
    parameter_dtype: str = ""
    stage: int = -1  # of ZeRO
    reductions: int = 0  # of gradients in a step
    micro_steps: int = 0  # in a step
    pipeline_stages: int = 0


def terms_of(engine: EngineConfig | None) -> Terms:
    """Return the terms of an engine; empty ones where there is none."""
    if engine is None:
        return Terms()
    return Terms(
        communication_dtype(engine),
        engine.parameter_dtype,
        stage_of(engine),
        passes_of(engine),
        accumulation_of(engine),
        engine.pipeline_stages,
    )


def _gradients(engine: EngineConfig, stage: int, course: Course) -> tuple[Demand, Expected]:
    passes = course.steps * passes_of(engine)
    size = item_bytes(communication_dtype(engine)) * passes
    families, why = _reductions(engine, stage)
    low = high = engine.parameters
    if "reduce_scatter" in families:  # each parameter is filled up to equal shares
        high = engine.layout.padded or round(1.01 * engine.parameters)
        low = high if families == ("reduce_scatter",) and engine.layout.padded else low
    most = course.flushes * course.groups * (course.group_size if families == ("reduce",) else 1)
    calls = Span(course.flushes, most) if course.flushes else None
    return Demand("gradients", families, why), Expected(calls, Span(low * size, high * size))


def _reductions(engine: EngineConfig, stage: int) -> tuple[tuple[str, ...], str]:
    """Return the collectives that carry gradients, and which setting makes it so."""
    zero = _zero(engine)
    scatter, contiguous = zero.get("reduce_scatter", True), zero.get("contiguous_gradients", True)
    if stage == 0:
        return ("all_reduce",), "all gradients, once a step"
    if stage == 3:
        if scatter or not contiguous:
            return ("reduce_scatter",), "ZeRO-3, each micro-step"
        return ("all_reduce", "reduce_scatter"), "ZeRO-3 with reduce_scatter false"
    often = "each micro-step" if stage == 2 else "once a step"
    if scatter and contiguous and not zero.get("use_multi_rank_bucket_allreduce", True):
        return ("reduce",), f"ZeRO-{stage}, to each owner, {often}"
    return ("all_reduce",), f"ZeRO-{stage}, whole buckets, {often}"


def _gathered_flat(engine: EngineConfig, course: Course) -> tuple[Demand, Expected]:
    flat, size = engine.layout.flat, _parameter_bytes(engine) * course.steps
    demand = Demand("update", ("all_gather",), "each flat buffer, once a step")
    if flat:
        calls = len(flat) * course.steps
        return demand, Expected(Span(calls, calls), Span(sum(flat) * size, sum(flat) * size))
    least = engine.parameters * size
    return demand, Expected(None, Span(least, round(1.01 * least)))


def _fetched(engine: EngineConfig, course: Course) -> tuple[Demand, Expected]:
    """Return what modules gather: once a micro-step where everything may stay until backward.

    A parameter stays while less than max_reuse_distance elements of modules run before its next
    use: at most those of the whole model in forward, in backward, and in recomputation.
    """
    zero, elements = _zero(engine), engine.layout.gathered
    distance = zero.get("stage3_max_reuse_distance", zero.get("max_reuse_distance", 10**9))
    furthest = 3 * (elements + engine.layout.persistent)
    stays = isinstance(distance, int) and distance >= furthest
    hpz = zero.get("zero_hpz_partition_size", 1)
    stays = stays and not (isinstance(hpz, int) and hpz > 1)
    size = elements * _parameter_bytes(engine) * course.steps * accumulation_of(engine)
    why = "once a micro-step" if stays else "for forward and for backward"
    demand = Demand("parameters", (_fetching(engine),), why)
    return demand, Expected(None, Span(size, size * (1 if stays else 2)))


def _fetching(engine: EngineConfig) -> str:
    zero, key = _zero(engine), "use_all_reduce_for_fetch_params"
    return "all_reduce" if zero.get(f"stage3_{key}", zero.get(key)) else "all_gather"


def _persistent(engine: EngineConfig, course: Course) -> tuple[Demand, Expected]:
    calls = engine.layout.persistent_parameters * course.steps
    nbytes = engine.layout.persistent * _parameter_bytes(engine) * course.steps
    demand = Demand("update", ("all_gather",), "each persistent parameter, once a step")
    return demand, Expected(Span(calls, calls), Span(nbytes, nbytes))


def _parameter_bytes(engine: EngineConfig) -> int:
    return item_bytes(engine.parameter_dtype)


def _zero(engine: EngineConfig) -> dict[str, Any]:
    section = engine.effective.get("zero_optimization")
    return section if isinstance(section, dict) else {}
