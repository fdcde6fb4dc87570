"""Findings that are gone, new, or have another weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsprof.comparison.model import Fate, FindingChange
from dsprof.findings.finding import Finding, Severity, Status, worst

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
        return "new"
    if not now:
        is_open = not new or any(one.status in _UNDECIDED for one in new)
        return "now unknown" if is_open else "gone"
    order = list(Severity).index
    change = order(_severity(now)) - order(_severity(was))
    return "still there" if change == 0 else "milder" if change > 0 else "worse"


def _failing(findings: Sequence[Finding]) -> list[Finding]:
    return [one for one in findings if one.status is Status.FAIL]


def _severity(failing: Sequence[Finding]) -> Severity:
    return worst(one.severity for one in failing)


def _state(findings: Sequence[Finding]) -> str:
    """Return the severity of a failing rule, else its status; nothing where it was not run."""
    if failing := _failing(findings):
        return _severity(failing).value
    return findings[0].status.value if findings else ""
