"""Which run it is, and by which rules and thresholds it was judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import datetime, timezone
from typing import Any

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.history import History
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.parts import filled
from dsprof.diagnosis.parts.run import MOST_SOURCES, RuleInfo, RunInfo, ThresholdInfo
from dsprof.findings.finding import Finding
from dsprof.rules.page import page_of
from dsprof.rules.rule import Rule

_PAGE_LENGTH = 1 << 15


def run_info(summary: RunSummary) -> RunInfo:
    """Say which run it is."""
    run, header = summary[Run], summary[Run].first
    hosts, starts_ns = dict[str, None](), list[int]()
    for facts in run.ranks.values():
        if facts.header.host:  # some files do not name it
            hosts[facts.header.host] = None
        starts_ns.append(facts.header.started_epoch_ns)
    return RunInfo(
        world_size=header.world_size if run.is_world_known else None,
        ranks=sorted(run.ranks),
        hosts=[*hosts],
        steps=max(summary[Steps].recorded, summary[History].steps),
        backend=header.backend,
        device=header.device,
        versions=header.versions,
        run_key=header.run_key,
        started=moment(min(starts_ns)),
        setup=_setup(summary[Engines]),
        source=_sources(run),
        epoch=run.epoch,
        epochs=run.epochs,
        parameters=_parameters(summary[Engines]),
        is_running=run.is_running,
        selection=str(run.selection),
    )


def rule_infos(rules: Iterable[Rule], findings: Iterable[Finding]) -> list[RuleInfo]:
    """Say of each rule what it is about, and explain those that found something."""
    found = {one.rule for one in findings if one.status.is_remark}
    return [
        filled(
            RuleInfo,
            rule.meta,
            rule=rule.meta.id,
            page=page_of(rule)[:_PAGE_LENGTH] if rule.meta.id in found else "",
        )
        for rule in rules
    ]


def thresholds_in_force(rules: Iterable[Rule], given: Mapping[str, Any]) -> list[ThresholdInfo]:
    """List the thresholds in force."""
    found = []
    for rule in rules:
        values = given.get(rule.meta.id, rule.thresholds)
        for field in fields(values):
            value, default = getattr(values, field.name), getattr(rule.thresholds, field.name)
            found.append(
                ThresholdInfo(
                    rule=rule.meta.id,
                    name=field.name,
                    value=list(value) if isinstance(value, tuple) else value,
                    is_default=value == default,
                )
            )
    return found


def _sources(run: Run) -> list[str]:
    """List the files read, rank by rank, the first of many; one may be of several ranks."""
    paths: dict[str, None] = {}
    for facts in run.ranks.values():
        paths |= dict.fromkeys((facts.path, *facts.beside))
        if len(paths) >= MOST_SOURCES:
            break
    return [*paths][:MOST_SOURCES]


def _parameters(engines: Engines) -> int | None:
    return engines.main.parameters or None if engines.main else None


def _setup(engines: Engines) -> str:
    if engines.main is None:
        return ""
    alike = Counter(
        f"ZeRO-{one.stage}, {one.precision}, accumulation {one.accumulation}"
        for one in engines.each
    )
    return "DeepSpeed " + "; ".join(
        f"{words} ({count} engines)" if count > 1 else words for words, count in alike.items()
    )


def moment(epoch_ns: int) -> str:
    """Return a moment of the wall clock as ISO 8601; "" where it is none."""
    if not epoch_ns:  # a log or a dump does not tell
        return ""
    try:
        moment = datetime.fromtimestamp(epoch_ns // 10**9, tz=timezone.utc)
    except (OverflowError, ValueError, OSError):
        return ""
    return moment.isoformat().replace("+00:00", "Z")
