"""Whether two runs are comparable: their steps do the same work."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from dsprof.diagnosis.model import Diagnosis


def unlike(before: Diagnosis, after: Diagnosis) -> Iterator[str]:
    """Name what makes the steps of two runs different work; what is not known is not named."""
    for name, first, second in (
        ("ranks", before.run.world_size, after.run.world_size),
        ("device", before.run.device, after.run.device),
        ("parameters of the model", before.run.parameters, after.run.parameters),
        ("batch of a step", *_batches(before, after)),
    ):
        if first and second and first != second:
            yield f"{name}: {_text(first)} before, {_text(second)} after"


def _batches(before: Diagnosis, after: Diagnosis) -> tuple[Any, Any]:
    """Return samples of a step where both configurations tell, else micro-steps."""
    batches = [one.environment.effective_config.get("train_batch_size") for one in (before, after)]
    if all(isinstance(batch, int) for batch in batches):
        return f"{batches[0]:,} samples", f"{batches[1]:,} samples"
    return _micro_steps(before), _micro_steps(after)


def _micro_steps(diagnosis: Diagnosis) -> str:
    counts = [row.micro_steps or 0 for row in diagnosis.steps.rows if row.is_measured]
    return f"{median(counts):g} micro-steps" if any(counts) else ""


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
