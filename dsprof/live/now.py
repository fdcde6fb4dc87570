"""The state of a run now: the value that terminal, metrics and JSON show of a run while it lasts.

The figures of a step are made by the aggregates of the report, from the steps that are new.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from dsprof.diagnosis.parts.steps import StepParts
from dsprof.findings.finding import Finding

State = Literal["running", "silent", "gone", "ended", "crashed"]
"""`silent`: without a sign of life for 10 s; `gone`: its process ended without a last line."""


LONG_NS = 1_000_000_000
"""A collective in flight for longer is worth a line."""


class InFlight(msgspec.Struct):
    """The oldest collective that a rank has called and that has not ended."""

    op: str
    group: str
    nbytes: int
    age_ns: int


class RankNow(msgspec.Struct):
    """One rank."""

    rank: int
    host: str
    state: State
    step: int | None  # the last that it completed
    silent_ns: int | None = None  # since its last sign of life; None: unknown, or it has ended
    step_ns: int | None = None  # median of its recent steps
    exposed_ns: int | None = None  # the same of exposed communication
    # How much longer the median of the others waits than it in a step, mean over recent steps.
    late_ns: int | None = None
    in_flight: InFlight | None = None
    rss_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    stuck_bytes: int | None = None  # free, in segments of the allocator that are partly used

    def stands_out(self, straggler: int | None) -> bool:
        """Say whether it is the straggler, has lost its process, or waits for long."""
        is_waiting = self.in_flight is not None and self.in_flight.age_ns > LONG_NS
        return is_waiting or self.state in ("silent", "gone", "crashed") or self.rank == straggler


class Strip(msgspec.Struct):
    """Ranks x recent steps: time outside communication waits, -1 without data."""

    ranks: list[int] = []
    steps: list[int] = []
    busy_ns: list[list[int]] = []
    total_ns: list[list[int]] = []  # all time of the step


class RunNow(msgspec.Struct):
    """The run. Fields are added, never renamed, within a `schema_version`."""

    run_key: str
    started: str  # ISO 8601, UTC
    world_size: int
    is_over: bool  # all ranks that have a trace have written its last line, or are gone
    ranks: list[RankNow]
    strip: Strip
    step: int | None = None  # the last that a rank completed
    steps_per_s: float | None = None  # by the median of recent steps
    step_ns: int | None = None  # median of recent steps, mean over ranks
    trend: float | None = None  # newer half / older half of recent steps - 1
    parts: StepParts | None = None  # of all recent steps together
    exposed_share: float | None = None
    straggler: int | None = None  # it delays the others in most of the recent steps
    straggler_ns: int | None = None  # by so much: mean, or median where few waits make the mean
    stuck: str = ""  # why no step ends, where none does
    findings: list[Finding] = []  # that stand, the most important first
    judged_steps: int | None = None  # up to which findings are known; None: not judged yet
    judge_failure: str = ""  # why the newest judgement failed
    looked: str = ""  # when this was so: ISO 8601, UTC
    epoch: int = 1  # of the run: how often its process group was started by now
    waiting_rules: list[str] = []  # judged only when the run is over
    is_removed: bool = False  # no rank has its trace where it was, so what it does is unknown
    stuck_key: str = ""  # of what is stuck: it stays the same while `stuck` says of longer waits
    schema_version: int = 1
