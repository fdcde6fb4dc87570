"""The rules: each class with a `meta` in a category's folder, rows of a table, and plugins."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from dsprof.plugins import entry_points
from dsprof.plugins.parts import classes_in, folders_in
from dsprof.rules.environment.settings import settings_rules
from dsprof.rules.plugin_rule import accepted
from dsprof.rules.rule import Rule


def _place(rule: Rule) -> tuple[int, str]:
    return rule.meta.order, rule.meta.id


def _built_in() -> Iterator[Rule]:
    for folder in folders_in(__name__):
        for kind in classes_in(folder):
            if issubclass(kind, Rule) and hasattr(kind, "meta"):
                yield kind()
    yield from settings_rules()


RULES: tuple[Rule, ...] = tuple(sorted(_built_in(), key=_place))
"""Those that are built in, in their order."""


@lru_cache(maxsize=1)
def plugin_rules() -> tuple[Rule, ...]:
    """Load the rules of other packages, once a process."""
    taken = {rule.meta.id for rule in RULES}
    return entry_points.load(
        entry_points.group("rules"), accepted, lambda rule: rule.meta.id, taken
    )


def all_rules() -> tuple[Rule, ...]:
    """Return the rules that are built in and those of plugins, in their order."""
    return tuple(sorted((*RULES, *plugin_rules()), key=_place))
