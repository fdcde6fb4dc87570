"""scalar-collectives: the training loop sends several numbers, objects or tiny tensors per step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.communication import Communication, Kind, Row
from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.collectives import SIZE_CLASSES, SIZE_NOT_KNOWN
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Details, Finding, Range, Severity, Status
from dsprof.findings.wording import count, duration, percent, plural
from dsprof.rules.evidence.calls import (
    Calls,
    blocked_ms,
    caller,
    calls_per_step,
    calls_table,
    over_all_ranks,
    own_ms,
    share_of_step,
)
from dsprof.rules.evidence.scalars import is_object, is_scalar
from dsprof.rules.reasons import NO_COLLECTIVE
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.rules.savings import omitting_saves
from dsprof.trace.collectives import REDUCTIONS, family


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When such collectives are many, and when they cost."""

    calls_per_step: float = 2.0  # of one rank; one loss a step is taken as meant
    number_bytes: int = 256  # mean size up to which something is a few numbers, and no tensor
    saved_share: float = 0.01  # of the step, that it is shorter without them


_SMALL = (SIZE_CLASSES[0], SIZE_NOT_KNOWN)

_NORM = "NormPartial"
"""What DTensor calls the norm of gradients: clipping needs that of all ranks in each step."""


class ScalarCollectives(Rule):
    """Judges what is sent outside forward, backward and step: the program itself asks for it.

    Metrics may be sent less often; tensors, which may be gradients, must go in every step.
    """

    meta = RuleMeta(
        id="scalar-collectives",
        title="The training loop sends few scalars and objects",
        failing_title="The training loop sends several scalars or objects per step",
        why="A scalar costs a full latency, and all ranks wait for each other to send it. An "
        "object is also pickled and copied to the device, and its size is sent first.",
        category="communication",
        order=210,
        needs=(Arrivals, Communication, Engines, Run, Steps),
        needs_sizes=True,
        needs_groups=True,
        min_steps=2,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Weigh the small collectives of the training loop."""
        rows = run[Communication].rows
        has_zero3 = any(one.stage == 3 for one in run[Engines].each)
        scalars = {
            kind: row
            for kind, row in rows.items()
            if is_scalar(kind)
            and _NORM not in kind.requested
            and not (has_zero3 and _is_of_zero3(kind))
        }
        scalars = over_all_ranks(scalars, run[Steps])
        larger = {
            (kind.op, site)
            for kind, row in rows.items()
            if kind.phase == "" and kind.size_class not in _SMALL and not is_object(kind)
            for site, _ in row.sites
        }
        numbers = {
            kind: row
            for kind, row in scalars.items()
            if is_object(kind)
            or (
                row.nbytes <= row.calls * thresholds.number_bytes
                # A line that also sends more loops over tensors, such as weights and biases.
                and not any((kind.op, site) in larger for site, _ in row.sites)
            )
        }
        tensors = {k: r for k, r in scalars.items() if k not in numbers}
        parts = (_repeated(part, thresholds.calls_per_step) for part in (numbers, tensors))
        many = [part for part in parts if part]
        if not any(kind.group_size > 1 for kind in rows):
            yield self.meta.not_applicable(NO_COLLECTIVE)
        elif scalars and not many:
            calls = calls_per_step(scalars)
            few = f"below the limit of {thresholds.calls_per_step:g} of a kind in a group"
            text = f"The loop sends {count(calls)} per step and rank, {few}."
            yield self.meta.finding(Status.PASS, text)
        for part in many:
            is_of_numbers = part.keys() <= numbers.keys()
            told = _NUMBERS if is_of_numbers else _of_tensors(part, has_ddp=run[Run].has_ddp)
            if _are_mostly_shards(part):
                told = _OF_SHARDS
            if by := caller(part):
                told = told | _by_library(*by, are_numbers=is_of_numbers)
            yield self._judged(part, run, thresholds, told)

    def _judged(
        self, scalars: Calls, run: RunSummary, thresholds: Thresholds, told: Details
    ) -> Finding:
        objects = calls_per_step({k: row for k, row in scalars.items() if is_object(k)})
        summary = (
            f"{plural(calls_per_step(scalars), 'collective')} of at most 4 KiB per step and rank"
        )
        summary += f", {count(objects)} of them for pickled objects" if objects else ""
        steps, cost_ms, saving = run[Steps], blocked_ms(scalars), _saving(run, scalars)
        details: Details = {**told, "evidence": (calls_table(scalars),)}
        if cost_ms is None:
            text = f"{summary}; their blocked time was not measured."
            return self.meta.finding(Status.INFO, text, **details)
        costs = saving is not None and share_of_step(saving[0], steps) >= thresholds.saved_share
        return self.meta.finding(
            Status.FAIL if costs else Status.INFO,
            f"{summary}: blocked time {duration(cost_ms * 1e6)} "
            f"({percent(share_of_step(cost_ms, steps))} of the step).",
            **Details(
                severity=Severity.MEDIUM,
                cause="The program sends them in the training loop.",
                saving_ms_per_step=saving if costs else None,
                saving_from="other",
                problem=f"{plural(calls_per_step(scalars), 'tiny collective')} per step",
                confidence="medium",
            )
            | details,
        )


def _of_tensors(tensors: Calls, *, has_ddp: bool) -> Details:
    action = "Join them into one tensor before they are sent, and split it afterwards."
    if any(family(kind.op) in REDUCTIONS for kind in tensors):
        action += " Leave gradients to DDP or DeepSpeed's engine, which send them in buckets."
    if has_ddp and any(family(kind.op) == "broadcast" for kind in tensors):
        action += " Broadcast no parameters in the loop: DDP keeps them equal."
    return {
        "title": "The training loop sends several small tensors per step",
        "action": action,
        "fix": "Join the tensors into one before sending",
    }


def _are_mostly_shards(calls: Calls) -> bool:
    """Say whether most are DTensors that are made whole, as by full_tensor()."""
    shards = {k: row for k, row in calls.items() if k.requested.startswith("DTensor Shard")}
    return 2 * calls_per_step(shards) > calls_per_step(calls)


def _by_library(library: str, site: str, *, are_numbers: bool) -> Details:
    action = f"Find what makes {library} send them: a setting, such as one for metrics, or a call "
    if are_numbers:
        action += (
            "in your program. Let it send them every N steps. If no setting stops what it sends "
        )
        action += "for each batch, use fewer and larger micro-batches."
    else:
        action += (
            "in your program. Tensors that the loss needs, such as embeddings, must be sent for "
        )
        action += "each batch: use fewer and larger micro-batches."
    return {
        "cause": f"{library} sends most of them, at {site}.",
        "action": action,
        "fix": f"Find what makes {library} send them",
    }


def _repeated(calls: Calls, limit: float) -> Calls:
    """Return those of groups with at least `limit` calls per step: no call joins two groups."""
    return {
        kind: row
        for part in _by_group(calls)
        if calls_per_step(part) >= limit
        for kind, row in part.items()
    }


def _by_group(calls: Calls) -> Iterable[Calls]:
    groups: dict[object, dict[Kind, Row]] = {}
    for kind, row in calls.items():
        groups.setdefault(row.members or kind.group, {})[kind] = row
    return groups.values()


def _saving(run: RunSummary, scalars: Calls) -> Range | None:
    """Return what one collective per step and group in place of all would save."""
    calls = calls_per_step(scalars)
    left = len(list(_by_group(scalars)))
    spared = max(0.0, 1 - left / calls) if calls else 0.0
    return omitting_saves(own_ms(run, scalars, are_apart=True), blocked_ms(scalars), spared)


def _is_of_zero3(kind: Kind) -> bool:
    """Say whether ZeRO-3 asks for this.

    It broadcasts the order of modules after each forward without gradients in an order that is new
    to it, to see that ranks ran the same ones, be it of the bare module, as in generation between
    updates. Its GatheredParameters all-gathers each parameter, large or small, through DeepSpeed.
    """
    compares = kind.dtype == "int64" and kind.requested == "broadcast"
    return compares or (family(kind.requested) == "all_gather" and not is_object(kind))


_NUMBERS: Details = {
    "action": "Keep losses and metrics as tensors on the device, join them into one tensor, and "
    "reduce it every N steps. Send objects once, before the loop. Hugging Face Trainer sends some "
    "whenever it logs: raise logging_steps.",
    "fix": "Join the metrics into one tensor",
}

_OF_SHARDS: Details = {
    "title": "The training loop makes several DTensors whole per step",
    "cause": "The program all-gathers each DTensor separately, as full_tensor() does.",
    "action": "Compute on the shards, and call full_tensor() on the result, not on each DTensor: "
    "p.grad.norm().full_tensor() reduces one number. torch.nn.utils.clip_grad_norm_() sends those "
    "of all parameters together. Make DTensors whole only where their values are needed, every N "
    "steps.",
    "fix": "Compute on the shards, then call full_tensor()",
}
