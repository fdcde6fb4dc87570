"""Judges a summary by rules: every rule answers, and one that breaks does not stop the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

import msgspec

from dsprof.analysis.aggregates.communication import Communication
from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.aggregates.traffic import Traffic
from dsprof.analysis.summary import RunSummary
from dsprof.findings import brief
from dsprof.findings.finding import Finding, Range, Severity, Status
from dsprof.plugins.entry_points import reason
from dsprof.rules.causes import covered, one_for_each_cause
from dsprof.rules.reasons import NO_ENVIRONMENT, SINGLE_RANK
from dsprof.rules.rule import Rule, RuleMeta

_ORDER = [
    Status.FAIL,
    Status.ERROR,
    Status.INFO,
    Status.UNKNOWN,
    Status.NOT_APPLICABLE,
    Status.PASS,
]
_CONFIDENCE = ["high", "medium", "", "low"]
_LEAST_MS = 0.05
"""A saving below it reads as 0.0 ms."""


def judge(
    run: RunSummary, rules: Iterable[Rule], thresholds: Mapping[str, Any] | None = None
) -> list[Finding]:
    """Return the findings of all rules, the most valuable first, at least one of each rule.

    `thresholds` replaces a rule's own by its id. Rules that come first own the exposed time that
    they would save, failures before remarks: the sum of all savings stays below what was measured.
    """
    rules, given = list(rules), thresholds or {}
    findings = [
        finding
        for rule in rules
        for finding in _answer(rule, run, given.get(rule.meta.id, rule.thresholds))
    ]
    metas = {rule.meta.id: rule.meta for rule in rules}
    worth_it = [_unless_worthless(finding, metas[finding.rule]) for finding in findings]
    told_once = _told_once(worth_it, metas)
    by_claim = sorted(told_once, key=lambda finding: finding.status is not Status.FAIL)
    step_ms, exposed_ms = _step_ms(run), _exposed_ms(run)
    owned_once = _owned_once(by_claim, dict(exposed_ms), step_ms)
    in_brief = [_in_brief(finding, step_ms) for finding in owned_once]
    return sorted(one_for_each_cause(in_brief, metas, exposed_ms[""]), key=_place)


def _answer(rule: Rule, run: RunSummary, thresholds: Any) -> list[Finding]:
    meta = rule.meta
    if failed := [run.failures[kind] for kind in meta.needs if kind in run.failures]:
        return [_broken(meta, failed[0])]
    missing = [kind.__name__ for kind in meta.needs if kind not in run]
    if missing:
        text = f"Unknown: {', '.join(missing)} was not collected."
        return [meta.unknown(text)]
    if meta.judges_end and Run in run and run[Run].is_running:
        return [meta.unknown("Unknown: the run has not ended yet.")]
    if _is_of_steps(meta) and _has_no_steps(run):
        return [meta.not_applicable("No step is marked.")]
    if meta.min_steps and (steps := _measured_steps(run)) < meta.min_steps:
        return [meta.too_few(steps, meta.min_steps)]
    if meta.on_cpus and Run in run and run[Run].is_cpu:
        return [meta.not_applicable(meta.on_cpus)]
    if meta.needs_ranks and _ranks(run) < 2:
        return [meta.not_applicable(SINGLE_RANK)]
    if meta.needs_environment and not run[EnvironmentFacts].recorded:
        return [meta.unknown(NO_ENVIRONMENT)]
    try:
        findings = list(rule.check(run.only(meta.needs), thresholds))
    except Exception as error:  # noqa: BLE001 - any data may come; the report goes on
        return [_broken(meta, reason(error))]
    findings = findings or [meta.finding(Status.PASS, meta.title + ".")]
    unknown = _unknown(meta, run, findings)
    return [meta.unknown(unknown)] if unknown else findings


def _broken(meta: RuleMeta, why: str) -> Finding:
    text = f"The rule itself failed: {why}"
    if not meta.package:
        return meta.finding(Status.ERROR, text, action="Please report this with the trace.")
    return meta.finding(
        Status.ERROR,
        f"{text}; it comes from the package {meta.package}.",
        action=f"Report this to the maintainers of {meta.package}; --no-plugins leaves it out.",
    )


def _unknown(meta: RuleMeta, run: RunSummary, findings: Sequence[Finding]) -> str:
    """Say what a rule took for zero that is not known; "" if nothing."""
    if Communication not in run:
        return ""
    communication = run[Communication]
    applies = any(finding.status is not Status.NOT_APPLICABLE for finding in findings)
    if meta.needs_groups and communication.is_ungrouped and _ranks(run) > 1:
        return "Unknown: the files do not name the ranks of process groups."
    if meta.needs_sizes and communication.is_unsized and applies:
        return "Unknown: the files do not contain the sizes of collectives."
    return ""


def _ranks(run: RunSummary) -> int:
    return run[Run].first.world_size if Run in run else 0


def _measured_steps(run: RunSummary) -> int:
    return len(run[Steps].measured) if Steps in run else 0


def _is_of_steps(meta: RuleMeta) -> bool:
    return bool(meta.min_steps) or (meta.category == "steps" and Steps in meta.needs)


def _has_no_steps(run: RunSummary) -> bool:
    """Whether no step can be: files of other tools that mark none."""
    is_foreign = Run in run and not run[Run].is_recorded
    return is_foreign and Steps in run and not len(run[Steps].numbers)


def _exposed_ms(run: RunSummary) -> dict[str, float]:
    """Return the exposed time of a step: in all (""), and by what was communicated."""
    exposed = {"": (run[Steps].exposed_ms_per_step or 0.0) if Steps in run else 0.0}
    if Traffic in run:
        traffic = run[Traffic]
        for use, volume in traffic.uses.items():
            before = exposed.get(use.purpose, 0.0)
            exposed[use.purpose] = before + traffic.per_step(volume.exposed_ns) / 1e6
    return exposed


def _step_ms(run: RunSummary) -> float:
    """Return the length of the mean measured step; without any, no step is too long."""
    if not _measured_steps(run):
        return inf
    return run[Steps].total.total_ns / 1e6 / _measured_steps(run)


def _unless_worthless(finding: Finding, meta: RuleMeta) -> Finding:
    """Let a rule pass whose remark is about a saving that reads as 0 B and 0.0 ms."""
    saving_ms, saving_bytes = finding.saving_ms_per_step, finding.saving_bytes_per_step
    saves_time = saving_ms is not None and saving_ms[1] >= _LEAST_MS
    is_stated = saving_ms is not None or saving_bytes is not None
    if not finding.status.is_remark or not is_stated or saves_time or saving_bytes:
        if saving_ms is None or saves_time:
            return finding
        return msgspec.structs.replace(finding, saving_ms_per_step=None)
    return meta.finding(Status.PASS, finding.summary)


def _told_once(findings: Sequence[Finding], metas: Mapping[str, RuleMeta]) -> Iterable[Finding]:
    """Take back remarks for which the rule that they are left to fails."""
    failures: defaultdict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        if finding.status is Status.FAIL:
            failures[finding.rule].append(finding)
    for finding in findings:
        teller = metas[finding.rule].left_to
        yield covered(finding, teller) if _is_told(finding, failures[teller]) else finding


def _is_told(finding: Finding, failures: Sequence[Finding]) -> bool:
    """Whether failures say more: of one rank of a remark; of all ranks, or a key, of a failure."""
    ranks = {rank for one in failures for rank in one.ranks}
    if finding.status is Status.FAIL:
        sets_same_key = any(_keys(finding) & _keys(one) for one in failures)
        return sets_same_key or (bool(finding.ranks) and ranks.issuperset(finding.ranks))
    return finding.status is Status.INFO and bool(ranks & set(finding.ranks))


def _keys(finding: Finding) -> set[tuple[str, str]]:
    """Return the keys that a finding sets, with their sections."""
    patch = finding.config_patch or {}
    return {(name, key) for name, part in patch.items() if isinstance(part, dict) for key in part}


def _owned_once(
    findings: Iterable[Finding], free_ms: dict[str, float], step_ms: float
) -> Iterable[Finding]:
    """Give every exposed millisecond to at most one finding: the first that claims it.

    The middle of a range is what is claimed: its upper end is of steps that are yet to come,
    and of the program's own work for calls that go. It is no longer than the step.
    """
    for finding in findings:
        if finding.saving_ms_per_step is None:
            yield finding
            continue
        low, high = finding.saving_ms_per_step
        pools = {"", finding.saving_from}
        each = finding.exposed_per_saving
        claimed = (low + high) / 2
        owned = min([claimed, *(free_ms.get(pool, 0.0) / each for pool in pools if each)])
        for pool in pools:
            free_ms[pool] = free_ms.get(pool, 0.0) - owned * each
        part = owned / claimed
        saving = (low * part, min(high * part, step_ms)) if owned > 0 else None
        yield msgspec.structs.replace(finding, saving_ms_per_step=saving)


def _in_brief(finding: Finding, step_ms: float) -> Finding:
    """Say what a rule did not say in a few words, and what its saving is of a step."""
    if not finding.status.is_remark:
        return finding
    return msgspec.structs.replace(
        finding,
        problem=brief.problem(finding),
        fix=brief.fix(finding),
        saving_share=_share(finding.saving_ms_per_step, step_ms),
    )


def _share(saving_ms: Range | None, step_ms: float) -> Range | None:
    if saving_ms is None or step_ms == inf:
        return None
    low, high = saving_ms
    return low / step_ms, high / step_ms


def _place(finding: Finding) -> tuple[int, int, bool, float, int, int]:
    """Return the order of a report: what failed first, then by severity, saving and confidence.

    Why a run failed comes before what would have made it faster.
    """
    ends = finding.category == "quality" and finding.severity is Severity.HIGH
    cost_ms = finding.saving_ms_per_step[1] if finding.saving_ms_per_step else finding.explains_ms
    return (
        _ORDER.index(finding.status),
        finding.severity.order,
        not ends,
        -cost_ms,
        -(finding.saving_bytes_per_step or 0),
        _CONFIDENCE.index(finding.confidence),
    )
