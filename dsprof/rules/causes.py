"""One finding for each cause: what only says that a part of the step is long becomes a facet."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from dsprof.findings.finding import Facet, Finding, Severity, Status, worst
from dsprof.rules.rule import RuleMeta

EXPOSED = "exposed communication"
IDLE = "device idle"
SYNCHRONISED = "device idle while the host waits for it"
TRANSFERS = "transfers that make ranks late"
LATE = "work of late ranks"
IN_TURN = "waits for ranks in turn"
KEPT = "device memory that is kept from step to step"
_SLOW_LINK, _LATE_RANK = "slow-link", "late-rank"
_NARROWER = {IDLE: SYNCHRONISED}
"""Where only remarks restate a part, a failure that restates a narrower one explains them."""
_MOST = 0.5
"""Findings explain the exposed time if they claim at least this share of it."""
_OF_CHANGE = 0.45
"""Late ranks, at most half of all, claim half of the change that they make, less noise."""


def one_for_each_cause(
    findings: Sequence[Finding], metas: Mapping[str, RuleMeta], exposed_ms: float
) -> Iterator[Finding]:
    """Yield the findings; those that restate what another one explains are facets of that one."""
    led = dict(_led(findings, metas, exposed_ms))
    for finding in findings:  # what leads may be led itself
        while (lead := led.get(id(led.get(id(finding))))) is not None:
            led[id(finding)] = lead
    for finding in findings:
        leads = [one for one in findings if led.get(id(one)) is finding]
        if (lead := led.get(id(finding))) is not None:
            yield covered(finding, lead.rule)
        elif leads:
            yield _with_facets(finding, leads)
        else:
            yield finding


def _led(
    findings: Sequence[Finding], metas: Mapping[str, RuleMeta], exposed_ms: float
) -> Iterator[tuple[int, Finding]]:
    """Yield each finding that restates a part, by its identity, with the one that leads it."""
    late = {id(one): lead for one in findings if (lead := _late_rank(findings, one))}
    yield from late.items()
    own = [one for one in findings if id(one) not in late]
    for part in sorted({one.restates for one in own} - {"", LATE}):
        same = [one for one in own if one.restates == part and one.status.is_remark]
        explained = _explanation(own, exposed_ms) if part == EXPOSED else None
        if part == TRANSFERS:
            explained = _slow_link(findings, {rank for one in same for rank in one.ranks})
        if not any(one.status is Status.FAIL for one in same):
            narrower = [one for one in findings if one.restates == _NARROWER.get(part)]
            same += [one for one in narrower if one.status is Status.FAIL]
        lead = explained or min(same, key=lambda one: _place(one, metas[one.rule]), default=None)
        if lead is not None:
            others = (one for one in same if one is not lead and one.restates == part)
            yield from ((id(one), lead) for one in others)


def _explanation(findings: Sequence[Finding], exposed_ms: float) -> Finding | None:
    """Return the failure that claims most of the exposed time, if failures claim half of it."""
    claims = [
        (_claimed_ms(one), one)
        for one in findings
        if one.status is Status.FAIL and one.restates in ("", TRANSFERS, LATE, IN_TURN)
    ]
    if not claims or sum(ms for ms, _ in claims) < max(_MOST * exposed_ms, 1e-9):
        return None
    return max(claims, key=lambda claim: claim[0])[1]


def _slow_link(findings: Sequence[Finding], late: Collection[int]) -> Finding | None:
    """Return the failure of slow links that only ranks of `late` have, or only these and more."""
    links = (one for one in findings if one.rule == _SLOW_LINK and one.status is Status.FAIL)
    slow = ((one, {*one.ranks}) for one in links if one.ranks)
    return next((one for one, ranks in slow if ranks <= {*late} or {*late} <= ranks), None)


def _late_rank(findings: Sequence[Finding], restating: Finding) -> Finding | None:
    """Return the failure that the ranks of a remark are late; one without ranks is of all ranks.

    A remark without ranks needs one from the same step on, which explains most of it.
    """
    if restating.restates != LATE or not restating.status.is_remark:
        return None
    ranks, steps = {*restating.ranks}, restating.steps[:1]
    late = [one for one in findings if one.rule == _LATE_RANK and one.status is Status.FAIL]
    if not ranks:
        least_ms = _OF_CHANGE * _claimed_ms(restating)
        same = (one for one in late if steps and one.steps == steps)
        return next((one for one in same if _claimed_ms(one) >= least_ms), None)
    return next((one for one in late if ranks <= {*(one.ranks or ranks)}), None)


def _claimed_ms(finding: Finding) -> float:
    low, high = finding.saving_ms_per_step or (0.0, 0.0)
    return max((low + high) / 2 * finding.exposed_per_saving, finding.explains_ms)


def _place(finding: Finding, meta: RuleMeta) -> tuple[bool, int, bool]:
    return finding.status is not Status.FAIL, finding.severity.order, not meta.leads


def covered(finding: Finding, rule: str) -> Finding:
    """Return a finding that another rule covers."""
    return msgspec.structs.replace(
        finding,
        status=Status.NOT_APPLICABLE,
        severity=Severity.NONE,
        summary=f"{finding.summary} Covered by {rule}.",
    )


def _with_facets(finding: Finding, facets: Sequence[Finding]) -> Finding:
    """Show what the others say, with the highest severity among them."""
    return msgspec.structs.replace(
        finding,
        severity=worst([finding.severity, *(one.severity for one in facets)]),
        facets=tuple(Facet(rule=f.rule, title=f.title, summary=f.summary) for f in facets),
    )
