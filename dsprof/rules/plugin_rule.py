"""Rules of other packages: checked when they are loaded, and in what they answer."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Any

import msgspec

from dsprof.analysis.summary import Aggregate, RunSummary
from dsprof.config.settings import Setting, checked
from dsprof.findings.finding import Finding
from dsprof.plugins.entry_points import reason
from dsprof.rules.rule import Rule, RuleMeta

_ID = re.compile(r"[a-z][a-z0-9-]{0,59}")
_TEXTS = ("id", "title", "failing_title", "why", "category", "left_to")
_LARGEST = 1e12
"""Sums and products of such numbers are finite, too."""


@dataclass(slots=True)
class PluginRule(Rule):
    """A rule whose findings may be anything until they have been checked."""

    rule: Rule
    meta: RuleMeta
    thresholds: Any

    def check(self, run: RunSummary, thresholds: Any) -> Iterable[Finding]:
        """Judge `run` as the plugin does.

        Raises:
            Exception: whatever the plugin raises, or its findings cannot be shown.
        """
        try:
            return [self._checked(finding) for finding in self.rule.check(run, thresholds)]
        except (Exception, KeyboardInterrupt):
            raise
        except SystemExit as error:
            raise RuntimeError("it called sys.exit()") from error
        except BaseException as error:  # a panic of Rust
            raise RuntimeError(reason(error)) from error

    def _checked(self, finding: Any) -> Finding:
        """Return a finding as it would be read back from JSON, under the name of this rule."""
        if not isinstance(finding, Finding):
            raise TypeError(f"a finding must be a Finding, got {type(finding).__name__}")
        plain = msgspec.convert(msgspec.to_builtins(finding), Finding)
        _check_numbers(plain)
        return msgspec.structs.replace(
            plain, rule=self.meta.id, category=self.meta.category, docs=""
        )


def accepted(rule: Any, package: str) -> Rule:
    """Return what a plugin calls a rule, if it is one.

    Raises:
        Exception: it is none, with the reason.
    """
    meta, thresholds = rule.meta, rule.thresholds
    if not isinstance(meta, RuleMeta):
        raise TypeError("its meta is no RuleMeta")
    if not callable(rule.check):
        raise TypeError("its check cannot be called")
    _check_meta(meta)
    _check_thresholds(thresholds)
    return PluginRule(rule, replace(meta, package=package), thresholds)


def _check_meta(meta: RuleMeta) -> None:
    for name in _TEXTS:
        if not isinstance(getattr(meta, name), str):
            raise TypeError(f"its {name} must be text")
    if not _ID.fullmatch(meta.id):
        raise ValueError("its id must be lower-case letters, digits and hyphens, at most 60")
    for number in (meta.order, meta.min_steps):
        if type(number) is not int:
            raise TypeError("order and min_steps must be whole numbers")
    for kind in meta.needs:
        if not (isinstance(kind, type) and issubclass(kind, Aggregate)):
            raise TypeError("each of its needs must be a subclass of Aggregate")
        pickle.dumps(kind)  # the processes that read large runs import it by its name


def _check_thresholds(thresholds: Any) -> None:
    """Let defaults pass where those of a configuration file would.

    Raises:
        ValueError: they would not.
    """
    if not is_dataclass(thresholds) or isinstance(thresholds, type):
        raise TypeError("its thresholds must be an instance of a frozen dataclass")
    if any(one.default is MISSING for one in fields(thresholds)):
        raise ValueError("each threshold must have a default")
    values = {
        one.name: Setting(value := getattr(thresholds, one.name), "thresholds", repr(value))
        for one in fields(thresholds)
    }
    mistakes: list[str] = []
    checked(values, type(thresholds), mistakes)
    if mistakes:
        raise ValueError(mistakes[0])


def _check_numbers(finding: Finding) -> None:
    low, high = finding.saving_ms_per_step or (0.0, 1.0)
    if not (0 <= low <= high <= _LARGEST and high > 0):
        raise ValueError("saving_ms_per_step must be finite: 0 <= low <= high, 0 < high")
    for name in ("exposed_per_saving", "explains_ms"):
        if not 0 <= getattr(finding, name) <= _LARGEST:
            raise ValueError(f"{name} must be a finite number, at least 0")
