"""defective-release: a library has a known fault that a later release mends."""

from __future__ import annotations

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.rules.environment.settings import SettingsRule
from dsprof.rules.rule import RuleMeta

RULE = SettingsRule(
    RuleMeta(
        id="defective-release",
        title="No release with a known serious fault is in use",
        failing_title="A release with a known serious fault is in use",
        why="Hangs that come once in hours look like faults of the program or of the network, and "
        "are looked for there.",
        category="environment",
        needs=(EnvironmentFacts,),
    )
)
