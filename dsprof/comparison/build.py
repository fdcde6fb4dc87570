"""From two diagnoses to their comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dsprof._version import __version__
from dsprof.comparison import settings
from dsprof.comparison.comparability import unlike
from dsprof.comparison.findings import finding_changes
from dsprof.comparison.model import Change, Comparison, Side
from dsprof.comparison.times import time_changes
from dsprof.comparison.traffic import kind_changes, operation_changes
from dsprof.comparison.verdict import summary, verdict
from dsprof.diagnosis.model import Diagnosis


def compare(before: Diagnosis, after: Diagnosis, names: tuple[str, str]) -> Comparison:
    """Say what changed from one run to another; `names` is how the user calls them."""
    reasons = list(unlike(before, after))
    sides = {"before": before, "after": after}
    unrecorded = [side for side, made in sides.items() if not settings.are_recorded(made)]
    comparison = Comparison(
        before=_side(names[0], before),
        after=_side(names[1], after),
        dsprof_version=__version__,
        unlike=reasons,
        unrecorded=unrecorded,
        operations=operation_changes(before, after),
        kinds=kind_changes(before, after),
        times=list(time_changes(before, after, reasons)),
        findings=list(finding_changes(before.findings, after.findings)),
    )
    if not unrecorded:
        comparison.configuration = _changes(settings.configuration, before, after)
        comparison.environment = _changes(settings.environment, before, after)
        comparison.versions = _changes(settings.versions, before, after)
    has_configuration = any(settings.configuration(made) for made in (before, after))
    comparison.verdict = verdict(comparison)
    comparison.summary = summary(comparison, has_configuration=has_configuration)
    return comparison


def _changes(
    of: Callable[[Diagnosis], Mapping[str, str]], before: Diagnosis, after: Diagnosis
) -> list[Change]:
    return settings.changes(of(before), of(after))


def _side(name: str, diagnosis: Diagnosis) -> Side:
    return Side(
        name=name,
        run=diagnosis.run,
        verdict=diagnosis.verdict,
        measured_steps=diagnosis.steps.measured_steps,
        dsprof_version=diagnosis.dsprof_version,
        typical_step=diagnosis.steps.typical,
    )
