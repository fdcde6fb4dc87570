"""single-hardware-queue: CUDA_DEVICE_MAX_CONNECTIONS=1 or its like puts streams in one line."""

from __future__ import annotations

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.rules.environment.settings import SettingsRule
from dsprof.rules.rule import RuleMeta

RULE = SettingsRule(
    RuleMeta(
        id="single-hardware-queue",
        title="Streams have hardware queues of their own",
        failing_title="Communication and computation share one hardware queue",
        why="With one queue a collective on its own stream waits for all computation that was "
        "launched before it, so nothing overlaps, whatever the configuration says.",
        category="environment",
        needs=(EnvironmentFacts,),
    )
)
