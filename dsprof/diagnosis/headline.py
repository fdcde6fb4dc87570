"""The first lines of a report: the finding that costs most, or how the time is spent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dsprof.analysis.aggregates.communication import Communication
from dsprof.analysis.aggregates.device import Device
from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.flight_recorders import DumpedRank, FlightRecorders
from dsprof.analysis.aggregates.history import History
from dsprof.analysis.aggregates.logs import Logs
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.snapshots import Snapshots
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.parts import filled
from dsprof.diagnosis.parts.run import Headline
from dsprof.diagnosis.parts.steps import StepParts, TypicalStep
from dsprof.findings.brief import line, saving, settings
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.findings.wording import duration, percent, plural, size
from dsprof.rules.evidence.endings import after_step, known_ends
from dsprof.trace.selection import Selection

NO_PROBLEMS = "No problems found"

_DECIDED = (Status.PASS, Status.FAIL)
_NEXT = 2  # problems below the headline

_NO_STEPS = "No optimizer step was recorded"
_BOUND = "communication-bound-step"
_OUTSIDE = "low-compute-share"
_LATE = "late-rank"
_SLOW, _SURE = "periodic-slow-step", "medium"
_BOUND_BY = {
    "compute": ("Compute-bound", 0.7),  # of a step; from here on low-compute-share passes
    "exposed communication": ("Communication-bound", 0.5),
    "copies": ("Bound by host copies", 0.5),
    "idle": ("The device is mostly idle", 0.5),
}
_MUCH = 0.2  # of a step: where so much is in no part, it is said
_LEAST_SHARE = 0.005  # of a step; a smaller part reads as 0 %


def leading(findings: Sequence[Finding], typical: TypicalStep | None) -> Finding | None:
    """Return the problem that a report begins with; None where there is none.

    `findings` come with the most valuable first. A problem of low severity that saves no time does
    not lead where the step waits for communication, though no setting changes that, unless more of
    the step lies outside training. Where nothing failed, a rank that surely delays some steps
    leads.
    """
    problems = [finding for finding in findings if finding.is_problem]
    if not any(finding.status is Status.FAIL for finding in problems):
        delays = (f for f in findings if f.rule == _SLOW and f.ranks and f.confidence == _SURE)
        return next(iter([*problems, *delays]), None)
    waiting = [f for f in findings if f.status is Status.INFO and f.rule == _BOUND]
    if waiting and typical and typical.parts.other_ns > (typical.parts.exposed_comm_ns or 0):
        waiting = [f for f in problems if f.rule == _OUTSIDE] or waiting
    grave = [f for f in problems if f.severity is not Severity.LOW or f.saving_ms_per_step]
    return [*grave, *waiting, *problems][0]


def has_verdict(findings: Iterable[Finding]) -> bool:
    """Whether a rule could judge more than the quality of the data."""
    return any(one.status in _DECIDED and one.category != "quality" for one in findings)


def headline_of(finding: Finding) -> Headline:
    """Return what a finding says in one line."""
    return filled(
        Headline,
        finding,
        line=line(finding),
        settings=settings(finding.config_patch or {}),
        saving=saving(finding),
        ranks=list(finding.ranks),
    )


def next_lines(findings: Sequence[Finding], lead: Finding | None) -> list[Headline]:
    """Return one line for each of the next two problems."""
    others = [one for one in findings if one.is_problem and one is not lead]
    return [headline_of(one) for one in others[:_NEXT]]


def verdict(findings: Sequence[Finding], summary: RunSummary, typical: TypicalStep | None) -> str:
    """Sum a run up in a sentence."""
    lead = leading(findings, typical)
    if lead is None:
        return _healthy(findings, summary, typical)
    if lead.status is Status.UNKNOWN:
        return line(lead)
    failed = sum(finding.status is Status.FAIL for finding in findings)
    run = summary[Run]
    has_steps = summary[Steps].measured or not run.is_recorded or run.is_of_environment
    no_steps = "" if has_steps else f" {_no_steps(summary)}."
    return f"{lead.summary}{_others(failed - (lead.status is Status.FAIL))}{no_steps}"


def without_problem(
    findings: Sequence[Finding], summary: RunSummary, typical: TypicalStep | None
) -> Headline:
    """Return the first line of a run in which nothing failed: where the step goes."""
    if typical is None:
        return Headline(line=_healthy(findings, summary, typical))
    limits = limited_by(typical.parts)
    start = _no_problems(findings)
    line = f"{_interrupted(summary)}{start}. {limits}.{_limit(findings, summary[Run])}"
    return Headline(line=line, problem=limits)


def _others(count: int) -> str:
    if not count:
        return ""
    return " One more finding follows." if count == 1 else f" {count} more findings follow."


def _healthy(findings: Sequence[Finding], summary: RunSummary, typical: TypicalStep | None) -> str:
    said = _where_time_goes(findings, summary, typical)
    return f"{_interrupted(summary)}{said}{_limit(findings, summary[Run])}"


def _no_problems(findings: Sequence[Finding]) -> str:
    waits = any(f.rule == _BOUND and f.status is Status.INFO for f in findings)
    return "No certain fix found" if waits else NO_PROBLEMS


def _where_time_goes(
    findings: Sequence[Finding], summary: RunSummary, typical: TypicalStep | None
) -> str:
    if typical is not None:
        step = f"Step {duration(typical.parts.total_ns)}: {_parts(typical.parts)}"
        return f"{_no_problems(findings)}. {step}."
    if (run := summary[Run]).is_of_environment:
        ranks = plural(len(run.ranks), "rank")
        return f"{NO_PROBLEMS} in the environment of {ranks}, checked for {run.first.backend}."
    if run.is_recorded:
        return f"{_no_steps(summary)}. {_for_steps(summary)}"
    if has_verdict(findings):
        judged = {one.rule for one in findings if one.status in _DECIDED}
        share = f"{len(judged)} of {plural(len({one.rule for one in findings}), 'check')}"
        return f"{NO_PROBLEMS} in {share}. {_without_steps(summary)}"
    return f"Nothing to judge. {_without_steps(summary)}"


def _no_steps(summary: RunSummary) -> str:
    """Say that no step is measured; of a rolling recording, sums may be all that is kept."""
    if steps := summary[History].steps:
        return f"Only sums of {plural(steps, 'step')} are kept"
    run = summary[Run]
    if chosen := run.selection.steps:
        return f"{_NO_STEPS} in {Selection(steps=chosen)}"
    return "No optimizer step has ended yet" if run.is_running else _NO_STEPS


def _for_steps(summary: RunSummary) -> str:
    """Say how to measure steps."""
    if any(facts.lost_parts for facts in summary[Run].ranks.values()):
        return "Copy all files of a rank."
    if summary[History].steps:
        return "Raise budget_mb: a step has more records than it keeps in detail."
    run = summary[Run]
    if run.selection.steps and any(trailer.steps for trailer in run.trailers):
        return "Select other steps."
    return "If the loop has no torch optimizer, call dsprof.step() in it."


def _without_steps(summary: RunSummary) -> str:
    """Say what the files of another tool show; that dumps and logs hold no steps is no news."""
    if (device := summary[Device]).complete:
        return f"Device: {_device_parts(device)}."
    if snapshots := summary[Snapshots].ranks.values():
        fullest = max(snapshots, key=lambda one: one.reserved_bytes)
        of = f"{size(fullest.active_bytes)} of {size(fullest.reserved_bytes)}"
        return f"{of} reserved device memory is in use."
    if dumps := summary[FlightRecorders].ranks.values():
        rest = " Give the dumps of all ranks." if summary[Run].unread_ranks else ""
        return f"Read: flight recorders of {plural(len(dumps), 'rank')}{_in_flight(dumps)}.{rest}"
    if logs := summary[Logs].ranks:
        return f"Read: logs of {plural(len(logs), 'rank')}."
    calls = sum(row.calls for row in summary[Communication].rows.values())
    if not calls:
        return (
            "No step and no collective was recorded. Record the run with DSPROF=1, or let the "
            "profiler record devices, too: torch's by ProfilerActivity.CUDA."
        )
    run = summary[Run]
    part = f"{len(run.ranks)} of " if run.missing_ranks and run.is_world_known else ""
    ranks = plural(run.first.world_size if run.is_world_known else len(run.ranks), "rank")
    return f"Recorded: {plural(calls, 'collective')} of {part}{ranks}; no step is marked."


def _in_flight(dumps: Iterable[DumpedRank]) -> str:
    groups = [flight for dump in dumps for flight in dump.groups.values()]
    calls = sum(len(one.in_flight) + len(one.p2p_in_flight) for one in groups)
    return f", {plural(calls, 'call')} in flight" if calls else ""


def _interrupted(summary: RunSummary) -> str:
    """Say that Ctrl-C ended ranks: what they would have done is not in the record."""
    endings = summary[Endings].ranks
    ranks = [rank for rank, ending in endings.items() if ending.is_interrupted]
    known = known_ends(endings, ranks, summary[Run].selection)
    return f"Interrupted{after_step(known, ranks)}. " if ranks else ""


def _limit(findings: Sequence[Finding], run: Run) -> str:
    """Say which verdicts are impossible: for a rule that broke, or for ranks that are missing."""
    broken = [f.rule for f in findings if f.status is Status.ERROR]
    rules = f" Rules that broke: {', '.join(broken[:3])}." if broken else ""
    return f"{rules}{_limit_of_ranks(findings, run)}"


def _limit_of_ranks(findings: Sequence[Finding], run: Run) -> str:
    is_open = any(f.rule == _LATE and f.status is Status.UNKNOWN for f in findings)
    if not (is_open and run.missing_ranks):
        return ""
    missing = f"at least {plural(len(run.missing_ranks), 'rank')}"
    if run.is_world_known:
        missing = f"{len(run.missing_ranks)} of {run.first.world_size} ranks"
    if not run.selection.has_all_ranks:
        return f" Stragglers unknown: {missing} are not read."
    return f" Stragglers unknown: the files of {missing} are missing."


def limited_by(step: StepParts) -> str:
    """Say what limits a step, and its parts: "Compute-bound: 76 % compute, 24 % exposed..."."""
    shares = _shares(step)
    if not shares:
        return "The parts of a step are unknown"
    most = max(shares, key=lambda name: shares[name])
    limit, least_share = _BOUND_BY[most]
    return f"{limit if shares[most] >= least_share else 'Step'}: {_parts(step)}"


def _shares(step: StepParts) -> dict[str, float]:
    named = {
        "compute": step.compute_ns,
        "exposed communication": step.exposed_comm_ns,
        "copies": step.copies_ns,
        "idle": step.idle_ns,
    }
    whole = max(step.total_ns, 1)
    return {name: ns / whole for name, ns in named.items() if ns is not None}


def _parts(step: StepParts) -> str:
    shares = _shares(step)
    if step.exposed_comm_ns is None:
        return ", ".join([*_shown(shares), "exposed communication unknown"])
    other = step.other_ns / max(step.total_ns, 1)
    rest = [f"{percent(other)} other"] if other >= _MUCH else []
    return ", ".join([*_shown(shares), *rest])


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
