"""One sentence that leads with the largest cost, or says that the run is healthy."""

from __future__ import annotations

from collections.abc import Sequence

from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.rules.communication import communication_bound_step
from dsprof.rules.rule import Finding, Severity, Status

_BOUND = communication_bound_step.RULE.meta.id


def verdict(findings: Sequence[Finding], summary: RunSummary) -> str:
    """Sum a run up; `findings` come with the most valuable first.

    A fault of low severity that saves no time does not lead where the step waits for communication,
    though that is no fault by itself.
    """
    steps = summary[Steps]
    failed = [finding for finding in findings if finding.status is Status.FAIL]
    if not steps.measured:
        return _without_steps(failed, is_recorded=summary[Run].is_recorded)
    waiting = [f for f in findings if f.status is Status.INFO and f.rule == _BOUND]
    grave = [f for f in failed if f.severity is not Severity.LOW or f.saving_ms_per_step]
    if lead := [*grave, *waiting, *failed]:
        rest = len(failed) - (lead[0] in failed)
        why = "" if failed else "No rule found a fault, yet "
        title = lead[0].title if failed else _lowered(lead[0].title)
        return f"{why}{title}: {lead[0].summary}{_others(rest)}"
    return f"No rule found a fault: {_anatomy(steps)}."


def _without_steps(failed: Sequence[Finding], *, is_recorded: bool) -> str:
    """Lead with the gravest finding; that dumps and logs hold no steps is no news."""
    start = "No optimizer step was recorded"
    if not failed:
        hint = "; in a loop that no library marks, dsprof.step() does" if is_recorded else ""
        return f"{start}, so no time can be judged{hint}."
    no_steps = f" {start}." if is_recorded else ""
    return f"{failed[0].summary}{_others(len(failed) - 1)}{no_steps}"


def _lowered(title: str) -> str:
    return title[0].lower() + title[1:]


def _others(count: int) -> str:
    if not count:
        return ""
    return " One more finding follows." if count == 1 else f" {count} more findings follow."


def _anatomy(steps: Steps) -> str:
    total, share = steps.total, steps.exposed_share
    length = f"a step takes {total.total_ns / len(steps.measured) / 1e6:,.0f} ms"
    if share is None:
        return f"{length}, but the share of communication could not be measured"
    parts = f"{share:.0%} of it waiting for communication"
    if total.compute_ns is not None and total.total_ns:
        parts += f" and {total.compute_ns / total.total_ns:.0%} in forward, backward and step"
    return f"{length}, {parts}"
