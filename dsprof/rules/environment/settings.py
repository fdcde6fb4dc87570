"""The rules that are nothing but rows of `knowledge/settings.csv`.

What each is called, and why, is a row of `knowledge/settings_rules.csv`.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsprof.analysis.aggregates.environment import EnvironmentFacts
from dsprof.files.tables import rows
from dsprof.rules.environment.settings_rule import SettingsRule
from dsprof.rules.rule import RuleMeta


def settings_rules() -> Iterator[SettingsRule]:
    """Make a rule of each row."""
    for row in rows("rules/knowledge/settings_rules.csv"):
        rule = SettingsRule()
        rule.meta = RuleMeta(
            id=row["id"],
            order=int(row["order"]),
            title=row["title"],
            failing_title=row["failing_title"],
            why=row["why"],
            category="environment",
            needs=(EnvironmentFacts,),
        )
        yield rule
