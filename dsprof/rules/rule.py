"""Rules: the contract between rules and the diagnosis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from dsprof.analysis.summary import Aggregate, RunSummary
from dsprof.findings.finding import Finding, Status
from dsprof.findings.wording import plural

_REMARKS = (Status.FAIL, Status.INFO)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleMeta:
    """Name, words and needs of a rule."""

    id: str  # noun of the failing state; also the name of its file and docs page
    title: str  # shown when it passes
    failing_title: str  # shown when it fails or has something worth knowing
    why: str  # one or two sentences: why it matters
    category: str  # "communication", "overlap", "memory", "configuration", "environment", "quality"
    needs: tuple[type[Aggregate], ...]
    order: int = 1000  # the lower owns exposed time that two could save: more specific first
    min_steps: int = 0  # fewer recorded steps: unknown
    needs_ranks: bool = False  # single-rank runs: not applicable
    needs_environment: bool = False  # where no rank recorded its own: unknown
    needs_sizes: bool = False  # where no collective has a size: unknown
    needs_groups: bool = False  # where a collective may be of one rank or of many: unknown
    judges_end: bool = False  # how a run ended: while it lasts, it says nothing
    judges_machine: bool = False  # what of a configuration a machine is slow in: for lint, too
    package: str = ""  # which brings it as a plugin; "": dsprof
    left_to: str = ""  # a rule that says more of the same ranks: where it fails, no remark here
    leads: bool = False  # of rules that restate one part of the step, the one to show

    def finding(self, status: Status, summary: str, *, title: str = "", **details: Any) -> Finding:
        """Return a finding of this rule; `details` are the further fields of `Finding`.

        `title` replaces that of the rule where the remark is about something else.
        """
        return Finding(
            rule=self.id,
            title=title or self._title(status),
            status=status,
            summary=summary,
            category=self.category,
            docs="" if self.package else f"rules/{self.id}.md",
            **details,
        )

    def not_applicable(self, why: str) -> Finding:
        """Return the finding that the run has nothing of what the rule judges."""
        return self.finding(Status.NOT_APPLICABLE, why)

    def unknown(self, why: str, **details: Any) -> Finding:
        """Return the finding that an input of the verdict is missing."""
        return self.finding(Status.UNKNOWN, why, **details)

    def too_few(self, steps: int, needed: int) -> Finding:
        """Return the finding that so few steps decide nothing."""
        after = f"{plural(steps, 'step')} after warm-up"
        only = f"Only {after}" if steps else "No step after warm-up"
        return self.unknown(f"{only}; {needed} {'is' if needed == 1 else 'are'} needed.")

    def _title(self, status: Status) -> str:
        if status is Status.PASS:
            return self.title
        # What was not decided is a question.
        return self.failing_title if status in _REMARKS else f"{self.failing_title}?"


@dataclass(frozen=True, slots=True)
class NoThresholds:
    """The thresholds of a rule that compares with no number."""


class Rule(Protocol):
    """One judgement. `thresholds` is a frozen dataclass, overridable from YAML by field name."""

    meta: RuleMeta
    thresholds: Any

    def check(self, run: RunSummary, thresholds: Any) -> Iterable[Finding]:
        """Judge `run`; yield no finding to say that the rule passed without a remark."""
        ...
