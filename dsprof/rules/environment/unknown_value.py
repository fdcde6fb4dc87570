"""unknown-value: a variable of NCCL or torch has a value that it does not know."""

from __future__ import annotations

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.rules.environment.settings import SettingsRule
from dsprof.rules.rule import RuleMeta

RULE = SettingsRule(
    RuleMeta(
        id="unknown-value",
        title="Every value is one that the library knows",
        failing_title="A variable has a value that the library does not know",
        why="NCCL ignores words that it does not know, without a message; torch refuses to start "
        "the process group.",
        category="environment",
        needs=(EnvironmentFacts,),
    )
)
