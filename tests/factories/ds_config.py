"""Judges a DeepSpeed configuration by hand: as a file, or as that of an engine that was made."""

from __future__ import annotations

from typing import Any

from dsprof.analysis.summary import RankClock, collected
from dsprof.findings.finding import Finding, Status
from dsprof.rules.rule import Rule
from dsprof.trace.schema import EngineConfig
from tests.factories.trace import header, judged, judged_summary, rank_trace

Written = dict[str, Any]


def read(
    rule: Rule, written: Written, deepspeed: str = "0.19.8", **thresholds: Any
) -> list[Finding]:
    """What a rule says of a configuration that was only read."""
    return _judged(rule, EngineConfig(1, written=written), deepspeed, **thresholds)


def ran(rule: Rule, written: Written, deepspeed: str = "0.19.8", **engine: Any) -> list[Finding]:
    """What a rule says of an engine that was made; `effective` is what is in force."""
    effective = {"zero_optimization": {"stage": 0}, **engine.pop("effective", {})}
    device = engine.pop("device", "")
    return _judged(rule, EngineConfig(1, written, effective, **engine), deepspeed, device)


def without_engine(rule: Rule) -> list[Finding]:
    """What a rule says of a run without DeepSpeed."""
    return judged(rule, rank_trace())


def with_status(findings: list[Finding], status: Status) -> list[Finding]:
    return [finding for finding in findings if finding.status is status]


def rows(findings: list[Finding]) -> dict[str, str]:
    """The keys in the evidence, each with the remark on it."""
    tables = [table for finding in findings for table in finding.evidence]
    return {str(row[0]): str(row[-1]) for table in tables for row in table.rows}


def zero(stage: Any = 2, **keys: Any) -> Written:
    """A configuration with these keys under zero_optimization."""
    return {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage, **keys}}


def _judged(
    rule: Rule, engine: EngineConfig, deepspeed: str, device: str = "", **thresholds: Any
) -> list[Finding]:
    head = header(versions={"deepspeed": deepspeed} if deepspeed else {}, device=device)
    trace = rank_trace(engine=engine, head=head)
    # No more than `dsprof lint` collects: tests judge thousands of configurations.
    return judged_summary(rule, collected(trace, RankClock(), rule.meta.needs), **thresholds)
