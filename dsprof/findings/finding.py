"""Finding: what a rule says of a run, with its evidence as typed tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import Any, Literal, TypedDict

import msgspec

Cell = str | int | float | bool | None

ColumnKind = Literal["text", "count", "bytes", "ns", "ms", "long_ns", "share", "rate"]
"""How a column is shown: `ns` and `bytes` scaled, `long_ns` up to hours, `share` as per cent,
`rate` in bytes/s."""


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

    @property
    def is_remark(self) -> bool:
        """Whether it is about the run: a problem, or what no setting would better."""
        return self in (Status.FAIL, Status.INFO)


class Severity(str, Enum):
    """How much a failed rule matters."""

    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    NONE = "none"

    @property
    def order(self) -> int:
        """Place from the highest down: 0 is critical."""
        return list(Severity).index(self)


Range = tuple[float, float]
"""Low and high."""

Confidence = Literal["", "low", "medium", "high"]
"""How sure a finding is; "" where it counts and estimates nothing."""


def worst(severities: Iterable[Severity]) -> Severity:
    """Return the highest of `severities`."""
    return min(severities, key=lambda severity: severity.order)


def by_severity(findings: Iterable[Finding]) -> str:
    """Count findings by severity, the highest first: "1 high, 2 medium"."""
    counts = Counter(finding.severity for finding in findings)
    return ", ".join(f"{counts[one]} {one.value}" for one in Severity if counts[one])


class Facet(msgspec.Struct, frozen=True, kw_only=True):
    """A remark of another rule on the cause of a finding."""

    rule: str
    title: str
    summary: str


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The answer of one rule on one run."""

    rule: str
    title: str
    status: Status
    summary: str  # one sentence with the figures
    problem: str = ""  # what is wrong in a few words, with its number: "Prefetching is off"
    fix: str = ""  # what to do in a few words, imperative: "Set `overlap_comm` to true"
    severity: Severity = Severity.NONE
    category: str = ""
    cause: str = ""  # why it is so
    action: str = ""  # what to do, imperative
    evidence: tuple[Table, ...] = ()
    facets: tuple[Facet, ...] = ()  # of the same cause
    ranks: tuple[int, ...] = ()  # () means all
    steps: tuple[int, ...] = ()  # those to look at
    more_steps: int | None = None  # where it is unknown: how many more to record would decide it
    config_patch: dict[str, Any] | None = None  # DeepSpeed keys to merge into the user's file
    saving_ms_per_step: Range | None = None  # low, high
    saving_share: Range | None = None  # the same as a share of the mean measured step
    exposed_per_saving: float = 1.0  # mean over ranks; of a late rank less, of computation nothing
    saving_from: str = ""  # whose exposed time: "gradients", "parameters" or "" for any
    saving_bytes_per_step: int | None = None
    explains_ms: float = 0.0  # exposed time of the mean step that it causes; no saving is promised
    confidence: Confidence = ""
    restates: str = ""  # a part of the step that it says is long; why, another finding says
    docs: str = ""  # page of the rule, relative to docs/

    @property
    def is_problem(self) -> bool:
        """Whether something is wrong, or would be known to be wrong after a few more steps."""
        undecided = self.status is Status.UNKNOWN and self.more_steps is not None
        return self.status is Status.FAIL or undecided


class Details(TypedDict, total=False):
    """Fields of `Finding` that a rule may set beside status and summary."""

    title: str
    problem: str
    fix: str
    severity: Severity
    cause: str
    action: str
    evidence: tuple[Table, ...]
    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    more_steps: int | None
    config_patch: dict[str, Any] | None
    saving_ms_per_step: Range | None
    saving_share: Range | None
    exposed_per_saving: float
    saving_from: str
    saving_bytes_per_step: int | None
    explains_ms: float
    confidence: Confidence
    restates: str
