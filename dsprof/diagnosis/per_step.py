"""Sums as means of one rank's step."""

from __future__ import annotations

from collections.abc import Iterable

from dsprof.analysis.collectives import SIZE_NOT_KNOWN
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.communication import CommunicationRow


def per_rank_step(total: int, count: int) -> float:
    """Return the mean of `total` over ranks times steps; 0 where there are none."""
    return total / count if count else 0.0


def rank_steps(diagnosis: Diagnosis) -> int:
    """Return the measured steps of all ranks together; a record without steps counts as one step.

    Diagnoses of older releases do not hold them: there each rank has all measured steps.
    """
    steps = diagnosis.steps
    return steps.rank_steps or max(len(diagnosis.run.ranks), 1) * max(steps.measured_steps, 1)


def bytes_of(rows: Iterable[CommunicationRow]) -> int | None:
    """Return the bytes of collectives over ranks and steps; None where some were not recorded."""
    sizes = [None if row.size_class == SIZE_NOT_KNOWN else row.bytes for row in rows]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None
