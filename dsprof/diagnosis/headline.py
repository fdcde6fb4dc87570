"""The first lines of a report as data: the problem, what to set to which value, what that saves."""

from __future__ import annotations

from collections.abc import Sequence

from dsprof.diagnosis.model import Headline
from dsprof.findings.brief import line, saving, settings
from dsprof.findings.finding import Finding

_NEXT = 2


def headline_of(finding: Finding) -> Headline:
    """Return what a finding says in one line."""
    return Headline(
        line=line(finding),
        problem=finding.problem,
        fix=finding.fix,
        settings=settings(finding.config_patch or {}),
        saving=saving(finding),
        saving_ms_per_step=finding.saving_ms_per_step,
        saving_share=finding.saving_share,
        saving_bytes_per_step=finding.saving_bytes_per_step,
        severity=finding.severity,
        confidence=finding.confidence,
        rule=finding.rule,
        ranks=list(finding.ranks),
    )


def next_lines(findings: Sequence[Finding], lead: Finding | None) -> list[Headline]:
    """Return one line for each of the next two problems."""
    others = [one for one in findings if one.is_problem and one is not lead]
    return [headline_of(one) for one in others[:_NEXT]]
