"""The headline of a report: the finding that costs most, or how the time is spent."""

from __future__ import annotations

from collections.abc import Sequence

from dsprof.analysis.aggregates.communication import Communication
from dsprof.analysis.aggregates.device import Device
from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.logs import Logs
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.snapshots import Snapshots
from dsprof.analysis.aggregates.steps import Parts, Steps
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.findings.wording import duration, percent, plural, size
from dsprof.rules.endings import after_step

NO_PROBLEMS = "No problems found"

_BOUND = "communication-bound-step"
_LATE = "late-rank"
_LEAST_SHARE = 0.005  # of a step; a smaller part reads as 0 %


def verdict(findings: Sequence[Finding], summary: RunSummary) -> str:
    """Sum a run up; `findings` come with the most valuable first.

    A problem of low severity that saves no time does not lead where the step waits for
    communication, though no setting changes that.
    """
    failed = [finding for finding in findings if finding.status is Status.FAIL]
    if not failed:
        healthy = _healthy(findings, summary)
        return f"{_interrupted(summary[Endings])}{healthy}{_limit(findings, summary[Run])}"
    waiting = [f for f in findings if f.status is Status.INFO and f.rule == _BOUND]
    grave = [f for f in failed if f.severity is not Severity.LOW or f.saving_ms_per_step]
    lead = [*grave, *waiting, *failed][0]
    no_steps = "" if summary[Steps].measured or not summary[Run].is_recorded else f" {_NO_STEPS}."
    return f"{lead.summary}{_others(len(failed) - (lead in failed))}{no_steps}"


_NO_STEPS = "No optimizer step was recorded"


def _others(count: int) -> str:
    if not count:
        return ""
    return " One more finding follows." if count == 1 else f" {count} more findings follow."


def _healthy(findings: Sequence[Finding], summary: RunSummary) -> str:
    steps = summary[Steps]
    if steps.measured:
        waits = any(f.rule == _BOUND and f.status is Status.INFO for f in findings)
        start = "No fixable problem found" if waits else NO_PROBLEMS
        return f"{start}. Step {_duration(steps)}: {_parts(steps.total)}."
    if summary[Run].is_recorded:
        return f"{_NO_STEPS}. In a plain loop, call dsprof.step() after each step."
    return f"{NO_PROBLEMS}. {_without_steps(summary)}"


def _without_steps(summary: RunSummary) -> str:
    """Say what the files of another tool show; that dumps and logs hold no steps is no news."""
    if (device := summary[Device]).complete:
        return f"Device: {_device_parts(device)}."
    if snapshots := summary[Snapshots].ranks.values():
        fullest = max(snapshots, key=lambda one: one.reserved_bytes)
        of = f"{size(fullest.active_bytes)} of {size(fullest.reserved_bytes)}"
        return f"{of} reserved device memory is in use."
    if logs := summary[Logs].ranks:
        return f"Read: {plural(len(logs), 'log')}."
    calls = sum(row.calls for row in summary[Communication].rows.values())
    return f"{plural(calls, 'collective')} recorded. Step time unknown: no step is marked."


def _interrupted(endings: Endings) -> str:
    """Say that Ctrl-C ended ranks: what they would have done is not in the record."""
    ranks = [rank for rank, ending in endings.ranks.items() if ending.is_interrupted]
    return f"Interrupted{after_step(endings.ranks, ranks)}. " if ranks else ""


def _limit(findings: Sequence[Finding], run: Run) -> str:
    """Say which verdict the ranks that are missing make impossible."""
    is_open = any(f.rule == _LATE and f.status is Status.UNKNOWN for f in findings)
    if not (is_open and run.missing_ranks):
        return ""
    missing = f"{len(run.missing_ranks)} of {run.first.world_size} ranks"
    return f" Stragglers unknown: the files of {missing} are missing."


def _duration(steps: Steps) -> str:
    return duration(steps.total.total_ns / len(steps.measured))


def _parts(total: Parts) -> str:
    named = {
        "compute": total.compute_ns,
        "exposed communication": total.exposed_ns,
        "copies": total.copies_ns,
        "idle": total.idle_ns,
    }
    whole = max(total.total_ns, 1)
    shares = {name: ns / whole for name, ns in named.items() if ns is not None}
    if total.exposed_ns is None:
        return ", ".join([*_shown(shares), "exposed communication unknown"])
    return ", ".join(_shown(shares))


def _device_parts(device: Device) -> str:
    names = {
        "compute_ns": "compute",
        "exposed_ns": "exposed communication",
        "copies_ns": "copies",
        "idle_ns": "idle",
    }
    return ", ".join(_shown({name: device.share(part) for part, name in names.items()}))


def _shown(shares: dict[str, float]) -> list[str]:
    """Name the parts that matter; communication always, for it is what was looked for."""
    return [
        f"{percent(share)} {name}"
        for name, share in shares.items()
        if share >= _LEAST_SHARE or name == "exposed communication"
    ]
