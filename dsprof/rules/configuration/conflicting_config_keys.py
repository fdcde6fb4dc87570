"""conflicting-config-keys: settings that cancel each other, or do something else than they say."""

from __future__ import annotations

import json
from collections.abc import Iterable

from dsprof.analysis.aggregates.engines import Engines
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.findings.wording import capitalised
from dsprof.rules.configuration.config_rule import ConfigRule
from dsprof.rules.configuration.engine_settings import EngineSettings
from dsprof.rules.knowledge.deepspeed.combinations import Combination
from dsprof.rules.knowledge.deepspeed.conflicts import AT_ODDS, before_overlapping
from dsprof.rules.knowledge.deepspeed.keys import keys
from dsprof.rules.rule import NoThresholds, RuleMeta


class ConflictingConfigKeys(ConfigRule):
    """Looks for combinations that DeepSpeed accepts without a message."""

    meta = RuleMeta(
        id="conflicting-config-keys",
        title="DeepSpeed settings do not conflict",
        failing_title="Conflicting DeepSpeed settings",
        why="DeepSpeed silently accepts settings that cancel each other or cost speed.",
        category="configuration",
        order=560,
        needs=(Engines,),
    )

    def judge(self, settings: EngineSettings, thresholds: NoThresholds) -> Iterable[Finding]:
        """Report each combination; those that no setting can fix are informational."""
        for combination in AT_ODDS:
            if settings.holds(combination):
                yield self._finding(settings, combination)

    def _finding(self, settings: EngineSettings, found: Combination) -> Finding:
        key = next(iter(found.when))
        rows = [(one, _in_force(settings, one)) for one in found.when if one in keys()]
        first = before_overlapping(settings.version, settings.stage) if found.overlaps else ""
        is_note = found.severity is Severity.NONE
        return self.meta.finding(
            Status.INFO if is_note else Status.FAIL,
            f"{key}: {found.says}.",
            title="What a setting of DeepSpeed does" if is_note else "",
            severity=found.severity,
            action=f"{capitalised(found.do)}.{first}",
            config_patch=found.config_patch,
            evidence=(settings.table(rows, remark="in force"),),
            confidence="high",
        )


def _in_force(settings: EngineSettings, key: str) -> str:
    """Return the value in force where it is not the one that was written."""
    value = json.dumps(settings.in_force(key))
    return "" if settings.cells(key)[1] == value else value
