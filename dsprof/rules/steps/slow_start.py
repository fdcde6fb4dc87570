"""slow-start: the first step ends long after the run began to communicate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from dsprof.analysis.aggregates.start_up import Call, Entry, StartUp
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Finding, Status
from dsprof.findings.wording import capitalised, long_duration, named
from dsprof.rules.rule import Rule, RuleMeta


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Limits from which on a start is reported."""

    start_s: float = 60.0
    steps: float = field(default=10.0, metadata={"maximum": None})  # so many mean steps long
    late_share: float = 0.2  # of the start, that ranks enter a collective apart


class SlowStart(Rule):
    """Reports how long the start took, and which rank the others waited for meanwhile."""

    meta = RuleMeta(
        id="slow-start",
        title="The run starts quickly",
        failing_title="The run starts slowly",
        why="Until the first step all devices are idle, at each start of a job. Warm-up steps are "
        "in no total, so no other figure contains it.",
        category="steps",
        order=425,
        needs=(StartUp, Steps),
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Name the ranks that others waited for, if clocks tell."""
        start, steps = run[StartUp], run[Steps]
        if not start.ranks:
            yield self.meta.not_applicable("No dsprof trace was given.")
            return
        if (length_ns := start.length_ns) is None:
            yield self.meta.unknown("Step 0 was not recorded on all ranks.")
            return
        if length_ns < max(thresholds.start_s * 1e9, thresholds.steps * steps.mean_ns):
            return
        latest = start.latest_entry
        if latest is None or latest[1].late_by_ns < thresholds.late_share * length_ns:
            yield self._alike(length_ns, is_known=latest is not None)
        else:
            yield self._waited(length_ns, *latest)

    def _alike(self, length_ns: int, *, is_known: bool) -> Finding:
        return self.meta.finding(
            Status.INFO,
            f"{_took(length_ns)}.",
            cause="No rank kept the others waiting for long: loading, compilation or the first "
            "batch takes this time on all ranks."
            if is_known
            else "It is unknown who waited for whom: the clocks of the ranks cannot be compared.",
            action="Cache what is compiled or prepared at the start.",
        )

    def _waited(self, length_ns: int, call: Call, entry: Entry) -> Finding:
        _, group, number = call
        what, late = f"{entry.op} {number:,} of {group}", named(entry.late)
        others = " and others" if entry.may_have_more_late else ""
        return self.meta.finding(
            Status.INFO,
            f"{_took(length_ns)}; ranks waited up to {long_duration(entry.late_by_ns)} of it for "
            f"{late}{others} in {what}.",
            cause=f"{capitalised(late)}{others} entered it that much later: preparing data, "
            "loading a checkpoint or computing what the others did not.",
            action=f"Do what {late} did before {what} ahead of the job, or in parallel on all "
            "ranks, and cache the result.",
            ranks=entry.late,
        )


def _took(length_ns: int) -> str:
    return f"The first step ended {long_duration(length_ns)} after the recording began"
