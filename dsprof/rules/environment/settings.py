"""The rules that are nothing but rows of `knowledge/settings.csv`: what each is called, and why."""

from __future__ import annotations

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.rules.environment.settings_rule import SettingsRule
from dsprof.rules.rule import Rule, RuleMeta


def _rule(rule: str, order: int, title: str, failing_title: str, why: str) -> SettingsRule:
    meta = RuleMeta(
        id=rule,
        title=title,
        failing_title=failing_title,
        why=why,
        category="environment",
        order=order,
        needs=(EnvironmentFacts,),
    )
    return SettingsRule(meta)


RULES: tuple[Rule, ...] = (
    _rule(
        "disabled-transport",
        660,
        "No variable disables a faster path",
        "A variable disables a faster path",
        "Variables that once worked around a defect stay in job scripts for years, and disable "
        "links and networks of other machines.",
    ),
    _rule(
        "forced-algorithm",
        670,
        "The library chooses algorithm and protocol itself",
        "A variable forces the algorithm or protocol of collectives",
        "The library chooses algorithm, protocol and channels by operation, size and machine. "
        "A single forced choice suits few of them, and is not checked.",
    ),
    _rule(
        "single-hardware-queue",
        680,
        "Streams have separate hardware queues",
        "Communication and computation share one hardware queue",
        "With one queue a collective on its own stream waits for all computation that was "
        "launched before it, so nothing overlaps, whatever the configuration says.",
    ),
    _rule(
        "unknown-value",
        690,
        "All values of variables are valid",
        "A variable has an invalid value",
        "NCCL silently ignores invalid values; torch refuses to start the process group.",
    ),
    _rule(
        "incomplete-platform-profile",
        700,
        "Settings that this platform requires are present",
        "Settings that this platform requires are missing",
        "Slingshot, some clouds and some GPUs run well only with variables that their vendors "
        "publish; a job script from another system lacks them, or sets those of another platform.",
    ),
    _rule(
        "deprecated-variable",
        780,
        "No deprecated variable is set",
        "Deprecated variables are set",
        "They may stop working in a later release, without a message.",
    ),
)
