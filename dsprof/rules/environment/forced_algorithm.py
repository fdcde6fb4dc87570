"""forced-algorithm: variables decide what NCCL, HCCL or oneCCL would choose by size and machine."""

from __future__ import annotations

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.rules.environment.settings import SettingsRule
from dsprof.rules.rule import RuleMeta

RULE = SettingsRule(
    RuleMeta(
        id="forced-algorithm",
        title="The library chooses algorithm and protocol itself",
        failing_title="A variable forces how collectives are done",
        why="The library chooses algorithm, protocol and channels by operation, size and machine. "
        "One choice for all is right for few of them, and a forced one is not checked.",
        category="environment",
        needs=(EnvironmentFacts,),
    )
)
