"""The common part of rules on DeepSpeed configurations: whose it is, and whether there is one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Finding
from dsprof.rules.configuration.engine_settings import EngineSettings
from dsprof.rules.engine_by_engine import of_engine
from dsprof.rules.reasons import NO_ENGINE, NO_WRITTEN_CONFIG
from dsprof.rules.rule import Rule
from dsprof.trace.schema import EngineConfig


class ConfigRule(Rule):
    """A rule that reads nothing but the settings of engines."""

    def check(self, run: RunSummary, thresholds: Any) -> Iterable[Finding]:
        """Judge the settings of each engine, if they were recorded; equal ones once."""
        engines = run[Engines]
        if engines.main is None:
            yield self.meta.not_applicable(NO_ENGINE)
            return
        different = _different(engines.known)
        if not different:
            yield self.meta.unknown(NO_WRITTEN_CONFIG)
        lines = engines.lines or {}
        for engine in different:
            settings = EngineSettings(engine, lines, engines.deepspeed, engines.device)
            found = self.judge(settings, thresholds)
            yield from of_engine(engine.engine, found) if len(different) > 1 else found

    @abstractmethod
    def judge(self, settings: EngineSettings, thresholds: Any) -> Iterable[Finding]:
        """Yield what there is to say."""


def _different(engines: Iterable[EngineConfig]) -> list[EngineConfig]:
    """Return the first engine of each configuration."""
    found: list[EngineConfig] = []
    for engine in engines:
        if not any(_is_alike(engine, other) for other in found):
            found.append(engine)
    return found


def _is_alike(engine: EngineConfig, other: EngineConfig) -> bool:
    return (engine.written, engine.effective, engine.kind) == (
        other.written,
        other.effective,
        other.kind,
    )
