"""From two diagnoses to their comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from dsprof._version import __version__
from dsprof.diagnosis.comparison import settings
from dsprof.diagnosis.comparison.model import Change, Comparison, Fate, FindingChange, Side
from dsprof.diagnosis.comparison.times import time_changes
from dsprof.diagnosis.comparison.traffic import kind_changes, operation_changes, why_not_compared
from dsprof.diagnosis.comparison.verdict import summary, verdict
from dsprof.diagnosis.model import Diagnosis
from dsprof.findings.finding import Finding, Severity, Status, worst
from dsprof.findings.wording import listed


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
        traffic_not_compared=why_not_compared(before, after),
        unrecorded=unrecorded,
        times=list(time_changes(before, after, reasons)),
        findings=list(finding_changes(before.findings, after.findings)),
    )
    if not comparison.traffic_not_compared:
        comparison.operations = operation_changes(before, after)
        comparison.kinds = kind_changes(before, after)
    if not unrecorded:
        comparison.configuration = settings.configuration_changes(before, after)
        comparison.environment = _changes(settings.environment, before, after)
        comparison.versions = _changes(settings.versions, before, after)
    comparison.verdict = _SAME_RUN if _is_same(before, after) else verdict(comparison)
    comparison.summary = summary(comparison, settings.compared(before, after))
    return comparison


_SAME_RUN = "Before and after are the same run"


def _is_same(before: Diagnosis, after: Diagnosis) -> bool:
    """Whether two diagnoses are of one run: no two have the same steps to the nanosecond."""
    rows = before.steps.rows
    return bool(rows) and before.run == after.run and rows == after.steps.rows


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
        is_recorded=diagnosis.quality.is_recorded,
        typical_step=diagnosis.steps.typical,
    )


def unlike(before: Diagnosis, after: Diagnosis) -> Iterator[str]:
    """Name what makes the steps of two runs different work; what is not known is not named."""
    for name, first, second in (
        ("ranks", before.run.world_size, after.run.world_size),
        ("recorded ranks", *_recorded(before, after)),
        ("device", before.run.device, after.run.device),
        ("parameters of the model", before.run.parameters, after.run.parameters),
        ("batch of a step", *_batches(before, after)),
    ):
        if first and second and first != second:
            yield f"{name}: {_text(first)} before, {_text(second)} after"


def _recorded(before: Diagnosis, after: Diagnosis) -> tuple[str, str]:
    """Return the ranks whose mean the steps are, if both worlds have as many."""
    if before.run.world_size != after.run.world_size:
        return "", ""
    return listed(before.run.ranks), listed(after.run.ranks)


def _batches(before: Diagnosis, after: Diagnosis) -> tuple[Any, Any]:
    """Return samples of a step where both configurations tell, else micro-steps."""
    batches = [one.environment.effective_config.get("train_batch_size") for one in (before, after)]
    if all(isinstance(batch, int) for batch in batches):
        return f"{batches[0]:,} samples", f"{batches[1]:,} samples"
    return _micro_steps(before), _micro_steps(after)


def _micro_steps(diagnosis: Diagnosis) -> str:
    counts = [row.micro_steps or 0 for row in diagnosis.steps.rows if row.is_measured]
    usual = median(counts) if counts else 0
    return f"{usual:g} micro-step{'s' * (usual != 1)}" if any(counts) else ""


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


_UNDECIDED = (Status.UNKNOWN, Status.ERROR)


def finding_changes(before: Sequence[Finding], after: Sequence[Finding]) -> Iterator[FindingChange]:
    """Follow each rule that fails in one of the runs; the order is that of the reports."""
    rules = [one.rule for one in [*after, *before] if one.status is Status.FAIL]
    for rule in dict.fromkeys(rules):
        old, new = ([one for one in run if one.rule == rule] for run in (before, after))
        failing = _failing(new) or _failing(old)
        yield FindingChange(
            rule=rule,
            title=failing[0].title,
            fate=_fate(old, new),
            before=_state(old),
            after=_state(new),
            summary=failing[0].summary,
        )


def _fate(old: Sequence[Finding], new: Sequence[Finding]) -> Fate:
    was, now = _failing(old), _failing(new)
    if not was:
        return "unknown before" if _is_open(old) else "new"
    if not now:
        return "now unknown" if _is_open(new) else "gone"
    change = _severity(now).order - _severity(was).order
    return "still there" if change == 0 else "milder" if change > 0 else "worse"


def _is_open(findings: Sequence[Finding]) -> bool:
    """Whether a rule may fail that does not: it was not run, or reached no verdict."""
    return not findings or any(one.status in _UNDECIDED for one in findings)


def _failing(findings: Sequence[Finding]) -> list[Finding]:
    return [one for one in findings if one.status is Status.FAIL]


def _severity(failing: Sequence[Finding]) -> Severity:
    return worst(one.severity for one in failing)


def _state(findings: Sequence[Finding]) -> str:
    """Return the severity of a failing rule, else its status; nothing where it was not run."""
    if failing := _failing(findings):
        return _severity(failing).value
    return findings[0].status.value if findings else ""
