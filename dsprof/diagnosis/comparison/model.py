"""Comparison: what changed from one run to another; written as JSON, a stable interface.

Times are nanoseconds, sizes bytes, bandwidths bytes per second; null means "not known here".
Calls, bytes and times of operations are of one rank's step, on average.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from dsprof.diagnosis.parts.run import RunInfo
from dsprof.diagnosis.parts.steps import TypicalStep

SCHEMA_VERSION = 1

Judgement = Literal["faster", "slower", "same", "inconclusive", "not compared"]
"""`same`: within the tolerance, with confidence; `inconclusive`: the noise hides it."""

Fate = Literal["gone", "new", "worse", "milder", "still there", "now unknown", "unknown before"]
"""The last two: one run was not judged by the rule, which lacked its input or was not run."""


class Side(msgspec.Struct):
    """One of the two runs."""

    name: str  # as it was given
    run: RunInfo
    verdict: str
    measured_steps: int
    dsprof_version: str = ""
    is_recorded: bool = True  # by dsprof; else other tools wrote all files
    typical_step: TypicalStep | None = None


class Change(msgspec.Struct):
    """A setting that is not the same; null where a run has no such setting."""

    name: str
    before: str | None
    after: str | None


class OperationChange(msgspec.Struct):
    """All collectives of one operation."""

    op: str
    before_calls: float
    after_calls: float
    before_bytes: float | None
    after_bytes: float | None
    is_changed: bool  # calls or bytes; exact, not by a tolerance
    before_exposed_ns: float | None = None
    after_exposed_ns: float | None = None


class KindChange(OperationChange, kw_only=True):
    """Like collectives of both runs; those that only one run has count 0 in the other."""

    group: str
    group_size: int | None
    phase: str
    size_class: str
    dtype: str
    is_async: bool
    on_wire: bool
    before_busbw: float | None = None
    after_busbw: float | None = None


class TimeChange(msgspec.Struct):
    """A part of the step in both runs, and whether the difference is more than noise."""

    part: str  # "total", "exposed_comm", "compute", "copies", "idle", "other"
    before_ns: float | None  # median of the measured steps, once the run has settled
    after_ns: float | None
    before_mean_ns: float | None = None  # of the same steps
    after_mean_ns: float | None = None
    low_ns: float | None = None  # the difference lies between these, with 99 % confidence; they
    # have one sign exactly where it is judged faster or slower
    high_ns: float | None = None
    judgement: Judgement = "not compared"
    why: str = ""  # where it could not be judged


class FindingChange(msgspec.Struct):
    """The fate of a finding."""

    rule: str
    title: str
    fate: Fate
    before: str  # severity, or status where it did not fail; "" where the rule was not run
    after: str
    summary: str  # of the run in which it fails


class Comparison(msgspec.Struct):
    """A change from `before` to `after`."""

    before: Side
    after: Side
    schema_version: int = SCHEMA_VERSION
    dsprof_version: str = ""
    unlike: list[str] = []  # why times do not compare: the runs are not comparable
    traffic_not_compared: str = ""  # why operations and bytes are not; "" if they are
    unrecorded: list[str] = []  # "before", "after": its settings are not known, and not compared
    configuration: list[Change] = []
    environment: list[Change] = []
    versions: list[Change] = []
    operations: list[OperationChange] = []
    kinds: list[KindChange] = []
    times: list[TimeChange] = []
    findings: list[FindingChange] = []
    verdict: str = ""  # one line: the time of a step, or why it does not compare
    summary: str = ""  # one sentence: traffic, findings, settings
