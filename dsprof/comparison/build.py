"""From two diagnoses to their comparison."""

from __future__ import annotations

from dsprof._version import __version__
from dsprof.comparison import settings
from dsprof.comparison.findings import finding_changes
from dsprof.comparison.kinds import unlike
from dsprof.comparison.model import Comparison, Side
from dsprof.comparison.times import time_changes
from dsprof.comparison.traffic import kind_changes, operation_changes
from dsprof.comparison.verdict import verdict
from dsprof.diagnosis.model import Diagnosis


def compare(before: Diagnosis, after: Diagnosis, names: tuple[str, str]) -> Comparison:
    """Say what changed from one run to another; `names` is how the user calls them."""
    reasons = list(unlike(before, after))
    comparison = Comparison(
        before=_side(names[0], before),
        after=_side(names[1], after),
        dsprof_version=__version__,
        unlike=reasons,
        configuration=settings.changes(
            settings.configuration(before), settings.configuration(after)
        ),
        environment=settings.changes(settings.environment(before), settings.environment(after)),
        versions=settings.changes(settings.versions(before), settings.versions(after)),
        operations=operation_changes(before, after),
        kinds=kind_changes(before, after),
        times=list(time_changes(before, after, reasons)),
        findings=list(finding_changes(before.findings, after.findings)),
    )
    comparison.verdict = verdict(comparison)
    return comparison


def _side(name: str, diagnosis: Diagnosis) -> Side:
    return Side(
        name=name,
        run=diagnosis.run,
        verdict=diagnosis.verdict,
        measured_steps=diagnosis.steps.measured_steps,
        dsprof_version=diagnosis.dsprof_version,
    )
