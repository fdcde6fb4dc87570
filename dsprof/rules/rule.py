"""Rules: the contract between rules and the diagnosis."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsprof.analysis.summary import Aggregate, RunSummary
from dsprof.findings.finding import Details, Finding, Severity, Status
from dsprof.findings.wording import plural

if TYPE_CHECKING:
    from typing_extensions import Unpack  # typing has it from Python 3.11 on


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleMeta:
    """Name, words and needs of a rule."""

    id: str  # noun of the failing state; also the name of its file and docs page
    title: str  # shown when it passes
    failing_title: str  # shown when it fails or has something worth knowing
    why: str  # one or two sentences: why it matters
    category: str  # communication, overlap, steps, memory, configuration, environment or quality
    needs: tuple[type[Aggregate], ...]  # aggregates that `check` reads
    order: int = 1000  # the lower owns exposed time that two could save: more specific first
    min_steps: int = 0  # with fewer recorded steps the verdict is unknown
    on_cpus: str = ""  # why a run on CPUs is not applicable; "": it is
    needs_ranks: bool = False  # a single-rank run is not applicable
    needs_environment: bool = False  # unknown if no rank recorded its environment
    needs_sizes: bool = False  # unknown if no collective has a size
    needs_groups: bool = False  # unknown if a collective may be of one rank or of many
    judges_end: bool = False  # judges how a run ended: not asked while the run lasts
    judges_machine: bool = False  # names settings in which a machine is slow: for lint, too
    package: str = ""  # name of the plugin's package; filled in when the plugin is loaded
    left_to: str = ""  # id of a rule that covers the same ranks or key better where it fails
    leads: bool = False  # of rules that restate one part of the step, the one to show

    def finding(self, status: Status, summary: str, **details: Unpack[Details]) -> Finding:
        """Return a finding of this rule; `details` are the further fields of `Finding`.

        `title` replaces that of the rule where the remark is about something else; `severity` is
        that of a failure, and counts for no other status.
        """
        details["title"] = details.get("title") or self._title(status)
        if status is not Status.FAIL:
            details["severity"] = Severity.NONE
        return Finding(
            rule=self.id,
            status=status,
            summary=summary,
            category=self.category,
            docs="" if self.package else f"rules/{self.id}.md",
            **details,
        )

    def not_applicable(self, why: str) -> Finding:
        """Return a finding: the run lacks what the rule judges."""
        return self.finding(Status.NOT_APPLICABLE, why)

    def absent(self, why: str, *, is_unknown: bool) -> Finding:
        """Return a finding: what is judged was not recorded; unknown if the run may have it."""
        return self.finding(Status.UNKNOWN if is_unknown else Status.NOT_APPLICABLE, why)

    def unknown(self, why: str, **details: Unpack[Details]) -> Finding:
        """Return a finding: an input of the verdict is missing."""
        return self.finding(Status.UNKNOWN, why, **details)

    def too_few(self, steps: int, needed: int) -> Finding:
        """Return a finding: too few steps for a verdict."""
        after = f"{plural(steps, 'step')} after warm-up"
        only = f"Only {after}" if steps else "No step after warm-up"
        return self.unknown(f"{only}; {needed} {'is' if needed == 1 else 'are'} needed.")

    def _title(self, status: Status) -> str:
        if status is Status.PASS:
            return self.title
        # What was not decided is a question.
        return self.failing_title if status.is_remark else f"{self.failing_title}?"


@dataclass(frozen=True, slots=True)
class NoThresholds:
    """The thresholds of a rule that compares with no number."""


class Rule(ABC):
    """One judgement. `thresholds` is a frozen dataclass, overridable from YAML by field name."""

    meta: RuleMeta  # a class without it is what several rules share
    thresholds: Any = NoThresholds()  # with its defaults

    @abstractmethod
    def check(self, run: RunSummary, thresholds: Any) -> Iterable[Finding]:
        """Judge `run`; yield no finding to say that the rule passed without a remark."""
