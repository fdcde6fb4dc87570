"""Throughput of all ranks together, and its share of the peak."""

from __future__ import annotations

from statistics import mean

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.models import Models, tokens_per_forward
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.aggregates.traffic import Traffic
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.parts import filled
from dsprof.diagnosis.parts.steps import Throughput, TypicalStep, UtilisationInfo
from dsprof.findings.wording import percent
from dsprof.rules.hardware.utilisation import Utilisation, divided_by, utilisation


def throughput(run: RunSummary, typical: TypicalStep | None) -> Throughput:
    """Divide what a step trains by the mean length of those since the run has settled.

    Unlike in the median, checkpoints and other long steps count. None where the record is silent.
    """
    if typical is None or not typical.parts.total_ns:
        return Throughput()
    settled = [one for one in run[Steps].measured if one >= (typical.settled_from or 0)]
    per_s = 1e9 / mean(run[Steps].parts[one].total_ns for one in settled)
    tokens, samples = _tokens(run), _samples(run)
    return Throughput(
        tokens_per_step=tokens,
        tokens_per_s=None if tokens is None else tokens * per_s,
        samples_per_step=samples,
        samples_per_s=None if samples is None else samples * per_s,
    )


def _tokens(run: RunSummary) -> float | None:
    """Return the tokens of a step over all ranks, where each rank has a batch of its own."""
    model, steps = run[Models].only, run[Steps]
    if model is None or divided_by(run) or not run[Run].is_world_known:
        return None
    micro_steps = steps.total.micro_steps / len(steps.measured)
    return tokens_per_forward(model) * micro_steps * run[Run].first.world_size or None


def _samples(run: RunSummary) -> int | None:
    """Return the samples of a step; engines that take steps in turn may train on the same ones."""
    samples = run[Engines].setting("train_batch_size")
    is_count = isinstance(samples, int) and not isinstance(samples, bool) and samples > 0
    return samples if is_count and len(run[Traffic].turns) < 2 else None


def utilisation_info(run: RunSummary) -> UtilisationInfo:
    """Say which share of the peak a step reaches, or why that is not known."""
    found = utilisation(run)
    return filled(UtilisationInfo, found, text=_text(found, run))


def _text(found: Utilisation, run: RunSummary) -> str:
    model = run[Models].only
    if found.share is None or found.peak_flops_per_s is None or model is None:
        return f"Model FLOPs utilisation: unknown ({found.unknown})."
    tokens, peak = tokens_per_forward(model), found.peak_flops_per_s / 1e12
    return (
        f"Model FLOPs utilisation: {percent(found.share)} of {peak:,.3g} TFLOP/s in "
        f"{found.precision} (estimate from {model.parameters:,} parameters and {tokens:,.0f} "
        "tokens per micro-step and rank, as in the first forwards)."
    )
