"""The budget file: YAML, every mistake in it with its place."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from dsprof.config.files import ConfigFile
from dsprof.config.settings import Setting, checked, raise_all

_FINDINGS, _MAY_BE_UNKNOWN = "findings", "may_be_unknown"


def _limit(**bounds: float) -> Any:
    return field(default=None, metadata={"minimum": 0, **bounds})


@dataclass(frozen=True, slots=True)
class Figures:
    """The most that a run may cost; None: no limit."""

    bytes_per_step: float | None = _limit()  # of one rank's step, on average
    operations_per_step: float | None = _limit()
    exposed_share: float | None = _limit(maximum=1)


@dataclass(frozen=True, slots=True)
class Findings:
    """How many findings may be of a severity or a higher one; None: no limit."""

    critical: int | None = _limit()
    high: int | None = _limit()
    medium: int | None = _limit()
    low: int | None = _limit()


FIGURES = tuple(one.name for one in fields(Figures))
SEVERITIES = tuple(one.name for one in fields(Findings))


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits by name, each with its place in the file; those that are not set are left out."""

    figures: dict[str, Setting]
    findings: dict[str, Setting]
    may_be_unknown: frozenset[str]  # figures and rules that need not be decided
    needs_verdicts: bool  # of all other rules


def load_budget(path: str | os.PathLike[str], rules: Iterable[str]) -> Budget:
    """Read a budget; `rules` are the ids of the rules that there are.

    Raises:
        ConfigError: something in the file is wrong; it lists all.
    """
    mistakes: list[str] = []
    file = ConfigFile(path, mistakes, sections=(_FINDINGS,), lists=(_MAY_BE_UNKNOWN,))
    figures = checked(file.options(FIGURES), Figures, mistakes)
    findings = checked(file.section(_FINDINGS, SEVERITIES), Findings, mistakes)
    known = (*FIGURES, *rules)
    listed = file.words(_MAY_BE_UNKNOWN, known, f"name in '{_MAY_BE_UNKNOWN}'")
    # A list of figures only asks nothing of rules; an empty list asks for all verdicts.
    needs_verdicts = listed is not None and not (listed and set(listed) <= set(FIGURES))
    budget = Budget(_set(figures), _set(findings), frozenset(listed or ()), needs_verdicts)
    if not mistakes and not (budget.figures or budget.findings or needs_verdicts):
        limits = ", ".join((*FIGURES, _FINDINGS))
        mistakes.append(f"{os.fspath(path)}: no limit given; possible limits: {limits}")
    raise_all(mistakes)
    return budget


def _set(settings: dict[str, Setting]) -> dict[str, Setting]:
    return {name: one for name, one in settings.items() if one.value is not None}
