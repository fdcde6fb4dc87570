"""Checks a DeepSpeed configuration before there is a run, and whether this machine suits it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.summary import Aggregate, RankClock, collected
from dsprof.config.deepspeed import WrittenConfig
from dsprof.environment import EnvSnapshot
from dsprof.findings.finding import Finding
from dsprof.rules import all_rules
from dsprof.rules.rule import Rule
from dsprof.rules.runner import judge
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import SCHEMA_VERSION, EngineConfig, Header


def config_rules() -> list[Rule]:
    """Return the rules that judge the configuration."""
    return [rule for rule in all_rules() if rule.meta.category == "configuration"]


def lint(
    config: WrittenConfig,
    deepspeed: str,
    machine: EnvSnapshot | None = None,
) -> list[Finding]:
    """Judge a configuration as a release of DeepSpeed would take it ("" if it is not known).

    Given `machine`, say what of the configuration that machine is slow in.
    """
    rules = config_rules()
    if machine is not None:
        rules += [rule for rule in all_rules() if rule.meta.judges_machine]
        machine = msgspec.structs.replace(machine, versions={})  # the release is a given
    trace = _trace(config, deepspeed)
    trace.environment = machine
    summary = collected(trace, RankClock(), _needed(rules))
    engines = replace(summary[Engines], lines=config.lines)
    return judge(summary.with_part(engines), rules)


def _needed(rules: Iterable[Rule]) -> list[type[Aggregate]]:
    needs = [kind for rule in rules for kind in rule.meta.needs]
    return list(dict.fromkeys([Engines, *needs]))


def _trace(config: WrittenConfig, deepspeed: str) -> RankTrace:
    """Return the trace of a rank that has made its engine and done nothing yet."""
    header = Header(
        schema_version=SCHEMA_VERSION,
        run_key="",
        rank=0,
        world_size=1,
        host="",
        pid=0,
        started_epoch_ns=0,
        started_monotonic_ns=0,
        device="",  # not known yet
        versions={"deepspeed": deepspeed} if deepspeed else {},
    )
    engine = EngineConfig(engine=1, written=config.values)
    return RankTrace(path="", header=header, engines={1: engine})
