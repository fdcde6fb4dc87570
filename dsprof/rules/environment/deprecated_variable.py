"""deprecated-variable: old names, and settings that current releases need no more."""

from __future__ import annotations

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.rules.environment.settings import SettingsRule
from dsprof.rules.rule import RuleMeta

RULE = SettingsRule(
    RuleMeta(
        id="deprecated-variable",
        title="No deprecated variable is set",
        failing_title="Variables are set that current releases rename or do not need",
        why="They work today and stop to one day, without a message.",
        category="environment",
        needs=(EnvironmentFacts,),
    )
)
