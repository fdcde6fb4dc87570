"""Tokens and samples that all ranks together train in a second."""

from __future__ import annotations

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.models import Models, tokens_per_forward
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.model import Throughput, TypicalStep
from dsprof.rules.hardware.utilisation import divided_by


def throughput(run: RunSummary, typical: TypicalStep | None) -> Throughput:
    """Divide what a step trains by its typical length; None where the record does not say."""
    if typical is None or not typical.parts.total_ns:
        return Throughput()
    per_s = 1e9 / typical.parts.total_ns
    tokens, samples = _tokens(run), run[Engines].setting("train_batch_size")
    return Throughput(
        tokens_per_step=tokens,
        tokens_per_s=None if tokens is None else tokens * per_s,
        samples_per_step=samples if _is_count(samples) else None,
        samples_per_s=samples * per_s if _is_count(samples) else None,
    )


def _tokens(run: RunSummary) -> float | None:
    """Return the tokens of a step over all ranks, where each rank has a batch of its own."""
    model, steps = run[Models].only, run[Steps]
    if model is None or divided_by(run) or not run[Run].is_world_known:
        return None
    micro_steps = steps.total.micro_steps / len(steps.measured)
    return tokens_per_forward(model) * micro_steps * run[Run].first.world_size or None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
