"""Makes the environment facts of a run by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.analysis.aggregates.logs import Logs
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RankClock, RunSummary
from dsprof.environment import EnvSnapshot
from dsprof.findings.finding import Finding
from dsprof.rules.rule import Rule
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import EngineConfig, Header
from dsprof.trace.selection import EVERYTHING, Selection
from tests.factories.trace import assert_can_be_shown


def rank_trace(
    rank: int = 0,
    variables: Mapping[str, str] | None = None,
    *,
    backend: str = "nccl",
    device: str = "cuda",
    engine: Mapping[str, Any] | None = None,
    others: Sequence[Mapping[str, Any]] = (),
    recorded: bool = True,
    **environment: Any,
) -> RankTrace:
    """A trace with nothing in it but its environment and, given `engine`, DeepSpeed engines."""
    engines = () if engine is None else (engine, *others)
    header = Header(1, "run-1", rank, 2, "node-a", 100, 0, 0, backend=backend, device=device)
    found = EnvSnapshot(variables=dict(variables or {}), **environment)
    return RankTrace(
        path=f"trace.rank{rank:05d}.json",
        header=header,
        environment=found if recorded else None,
        engines={n: EngineConfig(n, written=dict(one)) for n, one in enumerate(engines, 1)},
    )


def facts_of(*traces: RankTrace) -> EnvironmentFacts:
    """The facts of a run of these ranks."""
    parts = [EnvironmentFacts.collect(trace, RankClock()) for trace in traces]
    return reduce(EnvironmentFacts.merge, parts)


def judge(rule: Rule, *traces: RankTrace, selection: Selection = EVERYTHING) -> list[Finding]:
    """What `rule` finds in a run of these ranks, with its own thresholds; `selection` of more."""
    of_run = reduce(Run.merge, (Run.collect(trace, RankClock()) for trace in traces))
    of_run = replace(of_run, selection=selection)
    engines = reduce(Engines.merge, (Engines.collect(trace, RankClock()) for trace in traces))
    steps = reduce(Steps.merge, (Steps.collect(trace, RankClock()) for trace in traces))
    run = RunSummary([facts_of(*traces), engines, Logs(), of_run, steps])
    findings = list(rule.check(run, rule.thresholds))
    for finding in findings:
        assert_can_be_shown(finding)
    return findings
