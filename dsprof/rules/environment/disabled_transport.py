"""disabled-transport: a variable keeps NCCL from a path that the machine has."""

from __future__ import annotations

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.rules.environment.settings import SettingsRule
from dsprof.rules.rule import RuleMeta

RULE = SettingsRule(
    RuleMeta(
        id="disabled-transport",
        title="No variable keeps communication from a faster path",
        failing_title="A variable keeps communication from a faster path",
        why="Variables that once worked around a fault stay in job scripts for years, and move to "
        "machines whose links and networks they switch off.",
        category="environment",
        needs=(EnvironmentFacts,),
    )
)
