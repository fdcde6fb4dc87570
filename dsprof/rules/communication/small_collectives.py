"""small-collectives: many collectives so small that each costs its latency and little else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.analysis.aggregates.communication import Communication, Kind, Row
from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.flushes import Flushes
from dsprof.analysis.aggregates.pipelines import Pipelines
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.aggregates.traffic import Traffic, Use, Volume
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Range, Severity, Status, Table
from dsprof.findings.wording import count, size
from dsprof.rules.evidence.calls import (
    calls_per_step,
    calls_table,
    over_all_ranks,
    sends_buffers,
)
from dsprof.rules.evidence.scalars import is_scalar
from dsprof.rules.knowledge.buckets import KNOBS, Buckets, Knob
from dsprof.rules.reasons import NO_COLLECTIVE
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.rules.savings import (
    NOMINAL_NS_PER_BYTE,
    is_hidden,
    joining_saves,
    ns_per_byte,
)
from dsprof.trace.collectives import POINT_TO_POINT, REDUCTIONS, family

_HIDDEN = "No change is needed: computation hides them, so fewer would not shorten the step."

_FEW = "No change is needed where they cost little."


class _Origin(NamedTuple):
    """Why collectives that no setting bounds are small, and what makes them fewer."""

    cause: str
    action: str


_SEPARATE = _Origin(
    "The program, or a library, calls each of them separately.",
    f"{_FEW} Otherwise join tensors before they are sent; values that no update depends on can be "
    "sent less often.",
)
_UNITS = _Origin(
    "FSDP all-gathers, and reduces, each wrapped module by one collective, and all-gathers it in "
    "each micro-step.",
    f"{_FEW} Otherwise use fewer and larger micro-batches, or wrap larger modules: a few blocks "
    "can be one unit.",
)
_STAGES = _Origin(
    "Stages of a pipeline send each other the activations and gradients of each micro-batch.",
    f"{_FEW} Larger micro-batches send more at once, but fewer of them enlarge the bubble.",
)
_LAYERS = _Origin(
    "Tensor parallelism communicates activations and gradients of each layer separately.",
    f"{_FEW} Larger micro-batches send more at once.",
)
_SHARDED_OPTIMIZER = _Origin(
    "The optimizer broadcasts each parameter separately from the rank that updates it.",
    f"{_FEW} Otherwise join them in one call for each rank: ZeroRedundancyOptimizer does with "
    "parameters_as_bucket_view=True.",
)
_OF_UNITS = frozenset({"all_gather", "reduce_scatter"})

_TOLD = frozenset({"barrier"})
"""Traffic with a rule of its own; so have scalars, DDP's buffers, and at stage 3 parameters."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When collectives are small, and when they are many."""

    small_bytes: int = 1 << 20  # mean size below which latency rules on every common link
    calls_per_step: int = 16  # of one rank; fewer are not worth a setting
    held_share: float = 0.01  # of the step; buckets that hold less of it may be small


class SmallCollectives(Rule):
    """Looks for buckets that are too small first, then for other small collectives."""

    meta = RuleMeta(
        id="small-collectives",
        title="Collectives are large enough, or rare",
        failing_title="Buckets are too small",
        why="A collective costs a fixed latency in addition to its bytes; many small ones cost "
        "many latencies.",
        category="communication",
        order=240,
        needs=(
            *(Arrivals, BaselineCosts, Communication, Engines, Flushes, Pipelines, Run),
            *(Steps, Traffic),
        ),
        needs_sizes=True,
        needs_groups=True,
        min_steps=1,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Fail reductions that a setting would enlarge; mention the rest."""
        rows = {k: row for k, row in run[Communication].rows.items() if k.group_size > 1}
        if not rows:
            yield self.meta.not_applicable(NO_COLLECTIVE)
            return
        found = [
            self._buckets(knob, bucket, run, thresholds)
            for library, knob in KNOBS.items()
            if (bucket := _small_buckets(run, library, knob, thresholds)) is not None
        ]
        yield from found
        told = _TOLD | ({"all_gather"} if run[Engines].stage == 3 else set())
        small = {
            kind: row
            for kind, row in rows.items()
            if row.nbytes < row.calls * thresholds.small_bytes
            and family(kind.op) not in told
            and not is_scalar(kind)
            and not sends_buffers(kind, run[Run])
        }
        small = over_all_ranks(small, run[Steps])
        if not found and calls_per_step(small) >= thresholds.calls_per_step:
            yield self._others(small, _origin(small, run), _noun(small))

    def _buckets(
        self, knob: Knob, bucket: Buckets, run: RunSummary, thresholds: Thresholds
    ) -> Finding:
        # Larger units make fewer all-gathers of parameters, too.
        gathers = {} if knob.has_capacity else run[Traffic].of("parameters")
        gathers_ms = sum(run[Traffic].per_step(one.exposed_ns) for one in gathers.values()) / 1e6
        exposed_ms = bucket.exposed_ms_per_step + gathers_ms
        hidden = is_hidden(exposed_ms, run[Steps], thresholds.held_share)
        elements = knob.suggested(bucket)
        patch = {"zero_optimization": {knob.key: elements}} if knob.key else None
        return self.meta.finding(
            Status.INFO if hidden else Status.FAIL,
            f"{count(bucket.flushes_per_step)} {knob.noun} per step carry "
            f"{size(bucket.mean_bytes)} each: {knob.fact(bucket)}.",
            title=knob.title,
            severity=Severity.MEDIUM,
            cause=knob.cause,
            action=_HIDDEN if hidden else knob.action.format(elements=elements),
            problem=f"{knob.title}: {count(bucket.flushes_per_step)} of {size(bucket.mean_bytes)}",
            fix="" if hidden else knob.fix,
            evidence=(_figures(bucket, gathers_ms if gathers else None),),
            config_patch=None if hidden else patch,
            saving_ms_per_step=None if hidden else _saving(elements, bucket, gathers, run),
            saving_from="" if gathers else "gradients",
            confidence="medium",
        )

    def _others(self, small: dict[Kind, Row], origin: _Origin, noun: str) -> Finding:
        return self.meta.finding(
            Status.INFO,
            f"{count(calls_per_step(small))} small {noun} per step and rank; their cost is "
            "latency.",
            title=f"Many {noun} are small",
            cause=origin.cause,
            action=origin.action,
            evidence=(calls_table(small),),
            confidence="medium",
        )


def _origin(small: dict[Kind, Row], run: RunSummary) -> _Origin:
    """Return where most of the calls come from."""
    has_engine = bool(run[Engines].engines)
    has_units = any(kind.library.startswith("FSDP") for kind in run[Flushes].rows)
    found: dict[_Origin, float] = {}
    for kind, row in small.items():
        name, origin = family(kind.op), _SEPARATE
        if name in POINT_TO_POINT and run[Pipelines].stages > 1:
            origin = _STAGES
        elif kind.role == "tensor" or (not has_engine and _is_of_layers(kind, run[Traffic])):
            origin = _LAYERS
        elif name in _OF_UNITS and has_units:
            origin = _UNITS
        elif name == "broadcast" and kind.phase == "step" and not has_engine:
            origin = _SHARDED_OPTIMIZER
        found[origin] = found.get(origin, 0.0) + row.calls_per_step
    return max(found, key=lambda one: found[one])


def _noun(small: dict[Kind, Row]) -> str:
    """Return what the calls are."""
    are_sends = {family(kind.op) in POINT_TO_POINT for kind in small}
    if are_sends == {True}:
        return "sends and receives"
    return "collectives, sends and receives" if any(are_sends) else "collectives"


def _is_of_layers(kind: Kind, traffic: Traffic) -> bool:
    """Say whether a backward reduces activations, as tensor parallelism written by hand does."""
    name, nbytes = family(kind.op), Counter[str]()
    for use, volume in traffic.uses.items():
        if (use.family, use.group_size) == (name, kind.group_size):
            nbytes[use.purpose] += volume.nbytes
    is_reduced = kind.phase == "backward" and name in REDUCTIONS
    return is_reduced and nbytes["other"] > nbytes["gradients"]


def _saving(
    elements: int, bucket: Buckets, gathers: dict[Use, Volume], run: RunSummary
) -> Range | None:
    traffic, least = run[Traffic], ceil(bucket.in_backward / elements)
    largest = max(traffic.of("gradients"), key=lambda use: traffic.uses[use].nbytes, default=None)
    slope = (
        ns_per_byte(run, largest.family, largest.group_size)
        if largest
        else (0.0, NOMINAL_NS_PER_BYTE)
    )
    needed = bucket.reductions_per_step * max(1, least)
    saved = [
        joining_saves(
            bucket.exposed_ms_per_step,
            bucket.flushes_per_step,
            bucket.mean_bytes * bucket.flushes_per_step,
            needed,
            slope,
        )
    ]
    for use, one in gathers.items():
        saved.append(
            joining_saves(
                traffic.per_step(one.exposed_ns) / 1e6,
                traffic.per_step(one.calls),
                traffic.per_step(one.nbytes),
                traffic.per_step(one.calls) * needed / bucket.flushes_per_step,
                ns_per_byte(run, use.family, use.group_size),
            )
        )
    known = [one for one in saved if one is not None]
    return (sum(low for low, _ in known), sum(high for _, high in known)) if known else None


def _figures(bucket: Buckets, gathers_ms: float | None) -> Table:
    gathers = (Column("blocked by all-gathers", "ms"),) if gathers_ms is not None else ()
    return Table(
        columns=(
            Column("flushes per step and rank", "count"),
            Column("mean size", "bytes"),
            Column("capacity, elements", "count"),
            Column("blocked per step", "ms"),
            *gathers,
        ),
        rows=(
            (
                round(bucket.flushes_per_step),
                round(bucket.mean_bytes),
                bucket.capacity or None,
                bucket.exposed_ms_per_step,
                *([gathers_ms] if gathers else []),
            ),
        ),
    )


def _small_buckets(
    run: RunSummary, library: str, knob: Knob, thresholds: Thresholds
) -> Buckets | None:
    """Return the flushes of a library if they are small, many, and bounded by its setting."""
    flushes = run[Flushes]
    rows = [
        (kind, sums)
        for kind, sums in flushes.rows.items()
        if kind.library == library and (kind.capacity or not knob.has_capacity)
    ]
    times, steps = sum(sums.flushes for _, sums in rows), flushes.rank_steps
    is_bounded = not knob.has_capacity or any(kind.cause == "full" for kind, _ in rows)
    if not times or not steps or not is_bounded:
        return None
    found = Buckets(
        flushes_per_step=times / steps,
        mean_bytes=sum(kind.nbytes * sums.flushes for kind, sums in rows) / times,
        elements_per_step=sum(kind.elements * sums.flushes for kind, sums in rows) // steps,
        reductions_per_step=run[Traffic].reductions_per_step,
        capacity=max(kind.capacity for kind, _ in rows),
        exposed_ms_per_step=sum(sums.exposed_ns for _, sums in rows) / steps / 1e6,
    )
    # How often a step reduces is no matter of how large the wrapped modules are.
    reductions = 1.0 if knob.has_capacity else found.reductions_per_step
    many = found.flushes_per_step >= thresholds.calls_per_step * reductions
    return found if many and found.mean_bytes < thresholds.small_bytes else None
