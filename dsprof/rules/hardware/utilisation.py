"""Model FLOPs utilisation: the share of the hardware's peak that a step's model comes to."""

from __future__ import annotations

import re
from typing import NamedTuple

from dsprof.analysis.aggregates.baseline_costs import BaselineCosts
from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.models import Models, flops_per_token, tokens_per_forward
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.files.tables import rows
from dsprof.rules.hardware.hosts import architectures
from dsprof.rules.hardware.precision import computed_in
from dsprof.rules.hardware.products import fp32_products
from dsprof.trace.schema import Model

_DIVIDE = {"tensor", "pipeline", "sequence", "context", "expert", "model"}
"""Roles of groups whose ranks do not all multiply all parameters with all their tokens."""


class Utilisation(NamedTuple):
    """FLOPs of a step of one rank by its model, and the hardware's peak."""

    flops_per_step: float | None = None
    peak_flops_per_s: float | None = None
    precision: str = ""
    share: float | None = None
    unknown: str = ""  # what keeps the share from being known


def utilisation(run: RunSummary) -> Utilisation:
    """Return the share of the peak, or what is not known."""
    model, steps = run[Models].only, run[Steps]
    precision = _precision(run)
    if unknown := _unknown_model(run):
        return Utilisation(precision=precision, unknown=unknown)
    assert model is not None
    micro_steps = steps.total.micro_steps / len(steps.measured)
    flops = flops_per_token(model) * tokens_per_forward(model) * micro_steps
    peak = _peak(run, precision)
    if peak is None:
        return Utilisation(flops, None, precision, unknown=_unknown_peak(run, precision))
    return Utilisation(flops, peak, precision, flops / (steps.mean_ns / 1e9 * peak))


def _unknown_model(run: RunSummary) -> str:
    """Say what of the work of a step is not known; "" if all is."""
    models, model = run[Models].models, run[Models].only
    if model is None:
        return "several models are trained" if models else _NOT_RECORDED
    if divided := divided_by(run):
        return f"the model is divided over ranks ({', '.join(divided)})"
    if not run[Steps].total.total_ns:
        return "no step was measured"
    return _unknown_size(model)


def divided_by(run: RunSummary) -> list[str]:
    """Return the kinds of parallelism by which ranks share the work of one batch."""
    engine = run[Engines].main
    roles = sorted(run[EnvironmentFacts].roles.keys() & _DIVIDE)
    is_staged = engine is not None and engine.pipeline_stages > 1
    return roles or (["pipeline"] if is_staged else [])


def _unknown_size(model: Model) -> str:
    if model.has_experts:
        return "each token uses only some of the experts"
    if not model.parameters:
        return f"the number of parameters is not recorded with {model.library}"
    return "" if tokens_per_forward(model) else _NO_TOKENS


def _unknown_peak(run: RunSummary, precision: str) -> str:
    if not precision:
        return "the precision in which the model computes is not recorded"
    if not run[EnvironmentFacts].uses_gpu:
        return "the peak of this CPU is unknown; pass a baseline of dsprof bench with --baseline"
    names = ", ".join(filter(None, architectures(run[EnvironmentFacts]))) or "the device"
    return f"the peak of {names} in {precision} is unknown"


def _precision(run: RunSummary) -> str:
    name, facts = computed_in(run).name, run[EnvironmentFacts]
    return "tf32" if name == "fp32" and facts.uses_gpu and fp32_products(facts) == "tf32" else name


def _peak(run: RunSummary, precision: str) -> float | None:
    """Return the peak of a rank: of a device by its data sheet, of a CPU as it was measured."""
    facts = run[EnvironmentFacts]
    if not facts.uses_gpu:
        return run[BaselineCosts].flops_per_s.get(precision)
    peaks = {_peak_of(name, precision) for name in architectures(facts)}
    return peaks.pop() if len(peaks) == 1 else None


def _peak_of(name: str, precision: str) -> float | None:
    """Return the peak of a kind of device; slices of one (MIG) have none here."""
    known = (row for row in rows("rules/knowledge/peaks.csv") if re.search(row["pattern"], name))
    row = next(known, {}) if "MIG" not in name else {}
    return float(row[precision]) * 1e12 if row.get(precision) else None


_NOT_RECORDED = "parameters and tokens of a step are not recorded"
_NO_TOKENS = "tokens of a step are not recorded: no input is a batch of token IDs"
