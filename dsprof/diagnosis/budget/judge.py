"""Which limits of a budget a run breaks."""

from __future__ import annotations

from collections.abc import Iterator

from dsprof.analysis.aggregates.run import is_of_memory
from dsprof.diagnosis.budget.limits import SEVERITIES, Budget
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.per_step import bytes_of, rank_steps
from dsprof.findings.finding import Finding, Status
from dsprof.findings.wording import broken_off, plural, reason
from dsprof.rules.evidence.raised import RUN_FAILED

_HUNG = ("stuck-collective", "mismatched-collective", "collective-timeout")
_ENDS, _OF_MEMORY = "data-quality", "device-out-of-memory"
_SUMS = ("bytes_per_step", "operations_per_step")


def broken(budget: Budget, diagnosis: Diagnosis) -> list[str]:
    """Return one line for each limit that is broken, or that could not be decided."""
    unknown = dict(_unmeasured(budget, diagnosis)) | dict(_undecided(budget, diagnosis.findings))
    return [
        *_unended(budget, diagnosis),
        *_without_steps(budget, diagnosis),
        *_figures(budget, diagnosis),
        *_findings(budget, diagnosis.findings),
        *_allowable(budget, unknown),
    ]


def unjudged(budget: Budget, diagnosis: Diagnosis) -> list[str]:
    """Return the rules whose verdict is unknown and breaks no limit."""
    asked = diagnosis.findings if budget.findings else []
    return [one.rule for one in asked if one.status is Status.UNKNOWN]


def _without_steps(budget: Budget, diagnosis: Diagnosis) -> Iterator[str]:
    """A recording without a step has no findings to count: that nothing was measured is no pass."""
    is_recorded, steps = diagnosis.quality.is_recorded, diagnosis.steps.measured_steps
    if budget.findings and is_recorded and not steps:
        origin = next(iter(budget.findings.values())).origin
        yield (
            f"{origin}: findings could not be judged: no step was measured. Record 3 steps or "
            "more; if the loop has no torch optimizer, call dsprof.step() in it"
        )


def _unended(budget: Budget, diagnosis: Diagnosis) -> Iterator[str]:
    """A run that hung, crashed or was killed breaks every budget, whatever the figures before."""
    failing = [one for one in diagnosis.findings if one.status is Status.FAIL]
    said = {one.rule: one.summary for one in reversed(failing) if one.rule in _HUNG}
    quality = diagnosis.quality
    if diagnosis.run.is_running and _ENDS not in budget.may_be_unknown:
        yield f"the run goes on, and {_ENDS} is not in may_be_unknown; check it when it has ended"
    if quality.is_recorded and (quality.unclean_ranks or quality.exceptions):
        is_memory = not quality.unclean_ranks and all(map(is_of_memory, quality.exceptions))
        rule = _OF_MEMORY if is_memory else _ENDS
        why = next((one.summary for one in failing if one.rule == rule), "")
        said[rule] = why or ", ".join(quality.exceptions) or broken_off(quality.unclean_ranks)
    elif logged := [one.summary for one in failing if one.title == RUN_FAILED]:
        said[_ENDS] = logged[0]
    for rule, why in said.items():
        if rule not in budget.may_be_unknown:
            yield (
                f"{rule}: the run hung, crashed or was killed, and {rule} is not in "
                f"may_be_unknown: {why}"
            )


def _figures(budget: Budget, diagnosis: Diagnosis) -> Iterator[str]:
    measured = _measured(diagnosis)
    for name, limit in budget.figures.items():
        value = measured[name]
        if value is not None and value > limit.value:
            yield f"{limit.origin}: {name} is {_exceeds(value, limit.value)}"


def _exceeds(value: float, limit: float) -> str:
    """Show two numbers, a share with enough digits to differ from its limit."""
    short = f"{value:.3g}", f"{limit:.3g}"
    full = f"{value:,.12g}", f"{limit:,.12g}"
    return ", more than ".join(short if value < 1 and short[0] != short[1] else full)


def _measured(diagnosis: Diagnosis) -> dict[str, float | None]:
    """Return the figures of one rank's step; without measured steps none is known."""
    rows, steps = diagnosis.communication, rank_steps(diagnosis)
    nbytes = bytes_of(rows)
    has_steps = diagnosis.steps.measured_steps > 0
    return {
        "bytes_per_step": nbytes / steps if has_steps and nbytes is not None else None,
        "operations_per_step": sum(row.calls for row in rows) / steps if has_steps else None,
        "exposed_share": diagnosis.steps.exposed_share,
    }


def _findings(budget: Budget, findings: list[Finding]) -> Iterator[str]:
    failing = [one for one in findings if one.status is Status.FAIL]
    for severity, limit in budget.findings.items():
        counted = SEVERITIES[: SEVERITIES.index(severity) + 1]
        rules = [one.rule for one in failing if one.severity.value in counted]
        if len(rules) > limit.value:
            which = "critical" if severity == "critical" else f"{severity} or higher"
            yield f"{limit.origin}: findings {which}: {len(rules)}, more than {limit.value}: " + (
                ", ".join(rules)
            )


def _unmeasured(budget: Budget, diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    measured, gap = _measured(diagnosis), _gap(diagnosis)
    for name, limit in budget.figures.items():
        value, why = measured[name], gap if name in _SUMS else ""
        # Too much is too much, also where a part is missing.
        is_known = value is not None and (not why or value > limit.value)
        if not is_known and name not in budget.may_be_unknown:
            yield name, f"{limit.origin}: {name} could not be measured{why}"


def _gap(diagnosis: Diagnosis) -> str:
    """Say what is known to make every sum too small."""
    quality = diagnosis.quality
    if quality.dropped_events:
        return f": the record lacks {plural(quality.dropped_events, 'event')}"
    if quality.broken_lines:
        return f": the record has {plural(quality.broken_lines, 'unreadable line')}"
    if any(row.is_sampled for row in diagnosis.devices):
        return ": the files hold only a sample of the events"
    return ""


def _undecided(budget: Budget, findings: list[Finding]) -> Iterator[tuple[str, str]]:
    """Yield the rules that must reach a verdict and did not; none for a budget of figures."""
    if budget.figures and not budget.findings:
        return
    undecided = (Status.ERROR, *([Status.UNKNOWN] if budget.needs_verdicts else []))
    for one in findings:
        if one.status in undecided and one.rule not in budget.may_be_unknown:
            why = reason(one.summary).rstrip(".")
            yield one.rule, f"{one.rule} could not be judged ({why})"


def _allowable(budget: Budget, unknown: dict[str, str]) -> Iterator[str]:
    """Say what to write to allow what is unknown: in its own line, or for several in a last one."""
    if len(unknown) == 1:
        yield f"{next(iter(unknown.values()))}. To allow this, add it to may_be_unknown."
        return
    yield from (f"{line}." for line in unknown.values())
    if unknown:
        names = ", ".join([*sorted(budget.may_be_unknown), *unknown])
        yield f"To allow these, write: may_be_unknown: [{names}]"
