"""What a rule is, and what it says: the contract between rules, the diagnosis and the reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Protocol

import msgspec

from dsprof.analysis.summary import Aggregate, RunSummary

Cell = str | int | float | bool | None

ColumnKind = Literal["text", "count", "bytes", "ns", "ms", "share", "rate"]
"""How a column is shown: `ns` and `bytes` scaled, `share` as per cent, `rate` in bytes/s."""


class Column(msgspec.Struct, frozen=True):
    """Heading of a table column; `kind` carries the unit, so no number is without one."""

    label: str
    kind: ColumnKind = "text"


class Table(msgspec.Struct, frozen=True):
    """Evidence as typed data: renderers decide how it looks. Each row has one cell a column."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""

    def __post_init__(self) -> None:
        """Refuse a table that no renderer could show: one may come from a file.

        Raises:
            ValueError: a row has not one cell a column.
        """
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError("a row of a table has not one cell a column")


class Status(str, Enum):
    """Outcome of a rule."""

    PASS = "pass"
    FAIL = "fail"
    INFO = "info"  # true and worth knowing, but no setting would better it
    NOT_APPLICABLE = "not-applicable"
    UNKNOWN = "unknown"  # an input is missing
    ERROR = "error"  # the rule itself broke


class Severity(str, Enum):
    """How much a failed rule matters."""

    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    NONE = "none"


def worst(severities: Iterable[Severity]) -> Severity:
    """Return the gravest of `severities`; the enumeration lists them from the gravest down."""
    return min(severities, key=list(Severity).index)


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """What one rule has to say about one run."""

    rule: str
    title: str
    status: Status
    summary: str  # one sentence with the figures
    severity: Severity = Severity.NONE
    category: str = ""
    cause: str = ""  # why it is so
    action: str = ""  # what to do, imperative
    evidence: tuple[Table, ...] = ()
    ranks: tuple[int, ...] = ()  # () means all
    config_patch: dict[str, Any] | None = None  # DeepSpeed keys to merge into the user's file
    saving_ms_per_step: tuple[float, float] | None = None  # low, high
    exposed_per_saving: float = 1.0  # mean over ranks; of a late rank less, of computation nothing
    saving_from: str = ""  # whose exposed time: "gradients", "parameters" or "" for any
    saving_bytes_per_step: int | None = None
    confidence: Literal["", "low", "medium", "high"] = ""
    docs: str = ""  # page of the rule, relative to docs/


_REMARKS = (Status.FAIL, Status.INFO)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleMeta:
    """What a rule is called and what it needs."""

    id: str  # noun of the failing state; also the name of its file and docs page
    title: str  # shown when it passes
    failing_title: str  # shown when it fails or has something worth knowing
    why: str  # one or two sentences: why it matters
    category: str  # "communication", "overlap", "memory", "configuration", "environment", "quality"
    needs: tuple[type[Aggregate], ...]
    min_steps: int = 0  # fewer recorded steps: unknown
    needs_sizes: bool = False  # where no collective has a size: unknown
    needs_groups: bool = False  # where a collective may be of one rank or of many: unknown
    left_to: str = ""  # a rule that says more of the same ranks: where it fails, no remark here

    def finding(self, status: Status, summary: str, *, title: str = "", **details: Any) -> Finding:
        """Return a finding of this rule; `details` are the further fields of `Finding`.

        `title` stands in for that of the rule where the remark is about something else.
        """
        return Finding(
            rule=self.id,
            title=title or self._title(status),
            status=status,
            summary=summary,
            category=self.category,
            docs=f"rules/{self.id}.md",
            **details,
        )

    def too_few(self, steps: int, needed: int) -> Finding:
        """Return the finding that so few steps decide nothing."""
        after = f"{steps} step{'' if steps == 1 else 's'} after warm-up"
        return self.finding(Status.UNKNOWN, f"Only {after}; {needed} are needed.")

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
