"""step-time-drift: steps get longer and longer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.series import (
    Drift,
    Floats,
    change_of,
    drift_of,
    fits_better_as_line,
    is_steady_rise,
)
from dsprof.analysis.run.step_columns import StepColumns, step_columns
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import duration, named, percent
from dsprof.rules.causes import LATE
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.rules.steps.step_parts import (
    OF_ALL,
    PARTS,
    SAME_WORK,
    WORKING,
    growing_part,
    part_columns,
    passed,
    too_few,
)

_PART_OF_THE_LINE = 0.375
"""From the first quarter to the last, three quarters of the line are gone; half of these."""
_QUARTERS = ("first", "second", "third", "last")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Limits of drift."""

    steps: int = 24  # after warm-up; fewer do not tell
    share: float = 0.10  # of the first steps: by so much the last are longer
    severe_share: float = field(default=0.5, metadata={"maximum": None})
    sigmas: float = 2.0  # of the scatter around the line
    z: float = 3.3  # of Mann and Kendall's test: one in a thousand
    part_share: float = 0.6  # of the growth, that one part must explain to be named
    work_share: float = 0.05  # more collectives, bytes or micro-steps are more work


class StepTimeDrift(Rule):
    """Looks for a steady rise; a jump is judged by step-time-change."""

    meta = RuleMeta(
        id="step-time-drift",
        title="Step time does not grow steadily",
        failing_title="Step time grows steadily",
        why="Whatever grows with every step (a list, a cache, a log, heat) keeps growing.",
        category="steps",
        order=410,
        needs=(Run, Steps),
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Say by how much steps grow, and which part of them."""
        steps = run[Steps]
        series = steps.throughout.series
        most = max(map(len, series))
        if most < thresholds.steps:
            yield too_few(self.meta, steps, most, thresholds.steps)
            return
        for numbers in series:
            columns = step_columns(steps, numbers, run[Run].missing_ranks)
            drift = drift_of(columns.total_ns)
            if drift is not None and _grows(columns.total_ns, drift, thresholds):
                yield self._finding(columns, drift.start, drift.end - drift.start, thresholds)
                return
        yield passed(self.meta, "Step time does not grow steadily", series, thresholds.steps)

    def _finding(
        self, columns: StepColumns, start_ns: float, more_ns: float, thresholds: Thresholds
    ) -> Finding:
        count = len(columns.number)
        first, last = np.arange(count) < count // 4, np.arange(count) >= count - count // 4
        share = more_ns / max(start_ns, 1.0)
        of = int(columns.number[-1] - columns.number[0]) + 1
        text = (
            f"Step time grows from {duration(start_ns)} to {duration(start_ns + more_ns)} "
            f"({percent(share, sign='+')} in {of:,} steps)."
        )
        if columns.work_changed(first, last, thresholds.work_share):
            return self.meta.finding(
                Status.INFO,
                f"{text} The work per step grows with it.",
                title="Step time grows with the work per step",
                cause="More micro-steps, collectives or bytes: the program does more in a step.",
                evidence=(_table(columns),),
                confidence="high",
            )
        part = growing_part(columns.growth(first, last), more_ns, thresholds.part_share)
        ranks = columns.ranks_behind(first, last, more_ns * _PART_OF_THE_LINE)
        may_be_work = part in WORKING and not ranks
        severity = Severity.HIGH if share >= thresholds.severe_share else Severity.MEDIUM
        only = named(ranks) if columns.left_out else f"only {named(ranks)}; the others wait"
        return self.meta.finding(
            Status.FAIL,
            text,
            severity=Severity.LOW if may_be_work else severity,
            cause=(
                f"{SAME_WORK} The growing part is "
                f"{PARTS[part] if part and not ranks else 'work on the rank itself'}, on "
                f"{only if ranks else columns.ranks}.{OF_ALL * may_be_work}"
            )
            if part or ranks
            else f"{SAME_WORK} The growing part is unknown.",
            action=f"Compare temperature, clock and memory of {named(ranks)} with those of the "
            "others, and what else runs there. Then look for what grows only there: logs, caches."
            if ranks
            else "Check whether the program makes batches or sequences longer by design, as a "
            "curriculum does. Else look for what is kept from step to step: lists of losses that "
            "hold their graphs, growing caches and logs, memory near its limit; then for what else "
            "slows the machine: other programs, temperature, clock.",
            problem=f"Step time grows by {percent(share)} in {of:,} steps",
            fix=f"Compare temperature and clock of {named(ranks)} with the others"
            if ranks
            else "Check if batches or sequences grow, then what is kept: graphs, caches, logs",
            ranks=ranks,
            evidence=(_table(columns),),
            restates=LATE if ranks else "",
            confidence="medium",
        )


def _grows(times: Floats, drift: Drift, thresholds: Thresholds) -> bool:
    change = change_of(times)
    least = max(thresholds.share * drift.start, thresholds.sigmas * drift.scatter)
    return (
        len(times) >= thresholds.steps
        and change is not None
        and drift.end - drift.start >= least
        and drift.z >= thresholds.z
        and is_steady_rise(times)
        and fits_better_as_line(times, change, drift)
    )


def _table(columns: StepColumns) -> Table:
    parts = np.array_split(np.arange(len(columns.number)), 4)
    named_columns = part_columns(columns)
    return Table(
        columns=(Column("median of a step"), *(Column(f"{q} quarter", "ns") for q in _QUARTERS)),
        rows=tuple(
            (name, *(round(float(np.median(column[part]))) for part in parts))
            for name, column in named_columns.items()
        ),
        caption="Mean over ranks",
    )
