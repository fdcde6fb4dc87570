"""The page of each rule: those of dsprof in pages/, that of a plugin beside its module."""

from __future__ import annotations

from importlib.resources import files

from dsprof.rules.plugin_rule import PluginRule
from dsprof.rules.rule import Rule


def page_of(rule: Rule) -> str:
    """Return the page of a rule in Markdown; "" where its package has none."""
    name = f"{rule.meta.id}.md"
    try:
        if not isinstance(rule, PluginRule):
            return files("dsprof.rules").joinpath("pages").joinpath(name).read_text("utf-8")
        package = type(rule.rule).__module__.rpartition(".")[0]
        return files(package).joinpath(name).read_text("utf-8")
    except Exception:  # noqa: BLE001 - a package may be anything, and lie anywhere
        return ""
