"""Model FLOPs utilisation as a part of a diagnosis."""

from __future__ import annotations

from dsprof.analysis.aggregates.models import Models, tokens_per_forward
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.model import UtilisationInfo
from dsprof.findings.wording import percent
from dsprof.rules.hardware.utilisation import Utilisation, utilisation


def utilisation_info(run: RunSummary) -> UtilisationInfo:
    """Say which share of the peak a step reaches, or why that is not known."""
    found = utilisation(run)
    return UtilisationInfo(
        share=found.share,
        flops_per_step=found.flops_per_step,
        peak_flops_per_s=found.peak_flops_per_s,
        precision=found.precision,
        text=_text(found, run),
    )


def _text(found: Utilisation, run: RunSummary) -> str:
    model = run[Models].only
    if found.share is None or found.peak_flops_per_s is None or model is None:
        return f"Model FLOPs utilisation: unknown ({found.unknown})."
    tokens, peak = tokens_per_forward(model), found.peak_flops_per_s / 1e12
    return (
        f"Model FLOPs utilisation: {percent(found.share)} of {peak:,.3g} TFLOP/s in "
        f"{found.precision} "
        f"(estimate from {model.parameters:,} parameters and {tokens:,.0f} tokens per micro-step "
        "and rank, as in the first forwards)."
    )
