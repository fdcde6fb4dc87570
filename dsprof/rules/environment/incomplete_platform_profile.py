"""incomplete-platform-profile: settings that a network, cloud or GPU family asks for."""

from __future__ import annotations

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.rules.environment.settings import SettingsRule
from dsprof.rules.rule import RuleMeta

RULE = SettingsRule(
    RuleMeta(
        id="incomplete-platform-profile",
        title="The settings that this platform asks for are there",
        failing_title="Settings that this platform asks for are missing",
        why="Slingshot, some clouds and some GPUs run well only with variables that their makers "
        "publish; a job script from elsewhere lacks them, or brings those of another platform.",
        category="environment",
        needs=(EnvironmentFacts,),
    )
)
