"""What rules on the DeepSpeed configuration share: whose configuration, and is there one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.summary import RunSummary
from dsprof.rules.configuration.engine_settings import EngineSettings
from dsprof.rules.rule import Finding, NoThresholds, RuleMeta, Status


class ConfigRule(ABC):
    """A rule that reads nothing but the settings of the first engine."""

    meta: RuleMeta
    thresholds: Any = NoThresholds()

    def check(self, run: RunSummary, thresholds: Any) -> Iterable[Finding]:
        """Judge the settings, if they were recorded."""
        engines = run[Engines]
        if engines.main is None:
            text = "No DeepSpeed engine was recorded."
            return [self.meta.finding(Status.NOT_APPLICABLE, text)]
        if not engines.is_written_known:
            text = "The DeepSpeed configuration as written was not recorded."
            return [self.meta.finding(Status.UNKNOWN, text)]
        lines = engines.lines or {}
        settings = EngineSettings(engines.main, lines, engines.deepspeed, engines.device)
        return self.judge(settings, thresholds)

    @abstractmethod
    def judge(self, settings: EngineSettings, thresholds: Any) -> Iterable[Finding]:
        """Yield what there is to say."""
