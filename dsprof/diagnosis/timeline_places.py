"""Where findings show in the timelines: a step, and the collective and the ranks to look at."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dsprof.diagnosis.parts.steps import StepMap
from dsprof.diagnosis.parts.timelines import Timeline, TimelinePlace
from dsprof.findings.finding import Finding

_SHOWN = ("communication", "overlap", "steps")


def timeline_places(
    findings: Sequence[Finding], timelines: Sequence[Timeline], step_map: StepMap
) -> list[TimelinePlace]:
    """Find the step of each problem and note, of those that the report has in detail."""
    return [
        TimelinePlace(
            finding=number,
            step=step.step,
            operation=_operation(one, step),
            ranks=list(one.ranks),
        )
        for number, one in enumerate(findings)
        if is_shown(one)
        for step in _step(one, timelines, step_map)
    ]


def is_shown(finding: Finding) -> bool:
    """Whether a finding is a problem or a note that a timeline can show."""
    return finding.status.is_remark and finding.category in _SHOWN


def own_steps(finding: Finding, step_map: StepMap) -> list[int]:
    """Return the steps that a finding names, else those in which its ranks are late."""
    return [*finding.steps] or [
        mark.step
        for mark in step_map.marks
        if mark.kind == "straggler" and mark.rank in finding.ranks
    ]


def _step(finding: Finding, timelines: Sequence[Timeline], step_map: StepMap) -> Iterator[Timeline]:
    """Yield the step to look at: one of its own, else the worst, with which timelines begin."""
    own = {*own_steps(finding, step_map)}
    yield from [one for one in timelines if one.step in own][:1] or timelines[:1]


def _operation(finding: Finding, step: Timeline) -> str:
    """Return the first collective of the step that the evidence names."""
    kinds = {bar.kind for bar in step.bars if bar.is_communication}
    if not kinds:
        return ""
    longest_first = sorted(kinds, key=lambda kind: (-len(kind), kind))
    named = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)")
    for text in _texts(finding):
        if found := named.search(text):
            return found.group()
    return ""


def _texts(finding: Finding) -> Iterator[str]:
    for table in finding.evidence:
        yield from (cell for row in table.rows for cell in row if isinstance(cell, str))
    yield finding.summary.replace("-", "_")
