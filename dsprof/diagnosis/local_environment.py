"""The diagnosis of one process's environment, before there is a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsprof._version import __version__
from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.summary import RankClock, RunSummary
from dsprof.diagnosis.headline import NO_PROBLEMS
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.run import Quality, RunInfo
from dsprof.diagnosis.parts.steps import StepParts, Steps
from dsprof.diagnosis.sections.environment import environment_info
from dsprof.diagnosis.sections.run import rule_infos, thresholds_in_force
from dsprof.environment import EnvSnapshot
from dsprof.findings.finding import Finding, Status
from dsprof.plugins import entry_points
from dsprof.rules import all_rules
from dsprof.rules.rule import Rule
from dsprof.rules.runner import judge
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Header


def environment_rules() -> list[Rule]:
    """Return the rules that need nothing but the environment."""
    return [
        rule
        for rule in all_rules()
        if rule.meta.category == "environment" and set(rule.meta.needs) <= {EnvironmentFacts}
    ]


def diagnose_environment(
    header: Header, found: EnvSnapshot, thresholds: Mapping[str, Any]
) -> Diagnosis:
    """Judge an environment by the rules that need nothing else of a run."""
    trace = RankTrace(path="", header=header, environment=found)
    facts = EnvironmentFacts.collect(trace, RankClock())
    rules = environment_rules()
    findings = judge(RunSummary([facts]), rules, thresholds)
    return Diagnosis(
        run=RunInfo(
            world_size=header.world_size,
            ranks=[header.rank],
            hosts=[header.host],
            steps=0,
            backend=header.backend,
            device=header.device,
            versions=header.versions | found.versions,
            run_key=header.run_key,
        ),
        quality=Quality(notes=entry_points.problems()),
        steps=Steps(total=_NOTHING),
        dsprof_version=__version__,
        verdict=_verdict(findings, header, has_torch="torch" in found.versions),
        findings=findings,
        environment=environment_info(facts),
        thresholds=thresholds_in_force(rules, thresholds),
        rules=rule_infos(rules, findings),
    )


_NOTHING = StepParts(
    step=None,
    compute_ns=None,
    exposed_comm_ns=None,
    copies_ns=None,
    idle_ns=None,
    other_ns=0,
    total_ns=0,
)


def _verdict(findings: Sequence[Finding], header: Header, *, has_torch: bool) -> str:
    judged = f"checked for {header.backend}"
    if not has_torch:
        judged += " (this Python has no torch, which may decide otherwise)"
    failed = [finding for finding in findings if finding.status is Status.FAIL]
    if not failed:
        return f"{NO_PROBLEMS} in this environment, {judged}."
    more = f" And {len(failed) - 1} more." if len(failed) > 1 else ""
    return f"{failed[0].title}, {judged}: {failed[0].summary}{more}"
