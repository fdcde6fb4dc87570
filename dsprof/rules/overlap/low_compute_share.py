"""low-compute-share: ranks compute for less of the step than they could."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.phases import Phases
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.step_rows import Parts
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import duration, percent
from dsprof.rules.causes import EXPOSED, IDLE
from dsprof.rules.evidence.spans import span_outside
from dsprof.rules.rule import Rule, RuleMeta


@dataclass(frozen=True, slots=True)
class Thresholds:
    """How much of a step should be computation, and how little lie outside training."""

    compute_share: float = 0.7
    outside_share: float = 0.4  # in no phase, no wait and no copy
    before_share: float = 0.1  # of that, between a phase and the next forward: worth a remark
    before_fail_share: float = 0.2


_NAMED_SHARE = 0.25
"""A span with less of the time outside the phases does not explain it."""

_OUTSIDE = "outside forward, backward and step"
_BETWEEN = (
    "Between the phases the program does something else: it waits for data or for RPC, evaluates, "
    "generates, logs, or saves."
)
_BEFORE = (
    "There the loop takes its next batch, which a data loader without workers makes only then. It "
    "may also run another model, log, evaluate or save there."
)
_FEW = "Most of the time outside the phases is in few steps; in the median step it is {}."
_LOOK_AT_FEW = "Inspect the longest steps in the timeline: a checkpoint, an evaluation, a stall."
_LOOK = (
    "Look at what the loop does between step and forward. If it waits for data, give the loader "
    "more workers and prefetching; log and save checkpoints less often."
)
_ANNOTATE = " dsprof.annotate() gives such parts a name in the timeline."


class LowComputeShare(Rule):
    """Says where the time goes that is not computation.

    It fails only where much of the step lies outside forward, backward and step: waits, copies and
    an idle device have rules of their own.
    """

    meta = RuleMeta(
        id="low-compute-share",
        title="Most of the step is computation",
        failing_title="Much of the step is not computation",
        why="Changes to communication, copies or input can save at most the time that is not "
        "computation.",
        category="overlap",
        order=390,
        needs=(Arrivals, Phases, Run, Steps),
        min_steps=2,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Compare computation with the step."""
        total, count = run[Steps].total, len(run[Steps].measured)
        is_marked = {"forward", "backward"} <= set(run[Phases].rows)
        if total.idle_ns is None and run[Run].is_cpu and not is_marked:
            yield self.meta.unknown("Unknown: forward or backward is not marked.")
            return
        if total.compute_ns is None or not total.total_ns or run[Steps].is_counted:
            yield self.meta.unknown("Unknown: compute time is not measurable in this run.")
            return
        share = total.compute_ns / total.total_ns
        outside = total.other_ns / total.total_ns
        summary = f"{percent(share)} of the step is computation; the rest: {_rest(total)}."
        parts = [run[Steps].parts[number] for number in run[Steps].measured]
        usual = median(part.other_ns / max(part.total_ns, 1) for part in parts)
        is_in_few = usual < outside / 2
        is_low = share < thresholds.compute_share
        is_outside = is_low and outside >= thresholds.outside_share and total.idle_ns is None
        before = _before_forward(run)
        if is_outside and before < thresholds.outside_share and not is_in_few:
            yield self._outside(run, summary, outside)
            return
        if before >= thresholds.before_share and not is_in_few:
            yield self._before(run, summary, before, thresholds)
            return
        if not is_low:
            yield self.meta.finding(Status.PASS, summary)
            return
        longest, _ = max(_named_parts(total), key=lambda part: part[1] or 0)
        cause, action = f"The largest other part is {longest}.", "Read the findings on that part."
        if longest == _OUTSIDE:
            few = _FEW.format(percent(usual)), _LOOK_AT_FEW
            cause, action = few if is_in_few else (_BETWEEN, _LOOK + _ANNOTATE)
        yield self.meta.finding(
            Status.INFO,
            summary,
            cause=cause,
            action=action,
            problem=f"{percent(share)} of the step is computation",
            evidence=(_parts(total, count),),
            restates=longest,
            confidence="medium",
        )

    def _before(
        self, run: RunSummary, summary: str, before: float, thresholds: Thresholds
    ) -> Finding:
        total, count = run[Steps].total, len(run[Steps].measured)
        took = f"{duration(before * run[Steps].mean_ns)} per step ({percent(before)})"
        fix = "Load batches in worker processes, or find what else runs there"
        is_most = before >= thresholds.outside_share
        if span := span_outside(run[Phases], _NAMED_SHARE * total.other_ns / count):
            fix = f"Shorten {span.name}, or run it beside the step"
        return self.meta.finding(
            Status.FAIL if before >= thresholds.before_fail_share else Status.INFO,
            f"{summary} {took} pass before forwards, outside all phases.",
            title="Part of the step passes before forward",
            severity=Severity.MEDIUM if span or is_most else Severity.LOW,
            cause=_BEFORE,
            action=_LOOK if span else _LOOK + _ANNOTATE,
            problem=f"{percent(before)} of the step passes before forward",
            fix=fix,
            evidence=(_parts(total, count),),
            confidence="medium",
        )

    def _outside(self, run: RunSummary, summary: str, outside: float) -> Finding:
        total, count = run[Steps].total, len(run[Steps].measured)
        span = span_outside(run[Phases], _NAMED_SHARE * total.other_ns / count)
        longest = f" {span.name} takes {duration(span.ns)} of it per step." if span else ""
        title = "Much of the step lies outside forward, backward and step"
        return self.meta.finding(
            Status.FAIL,
            f"{summary}{longest}",
            title=title,
            problem=f"{percent(outside)} of the step is outside its phases",
            # Without a name it says how little was marked: a finding with a cause goes first.
            severity=Severity.MEDIUM if span else Severity.LOW,
            cause=_BETWEEN,
            action=_LOOK if span else _LOOK + _ANNOTATE,
            fix=f"Shorten {span.name}, or run it beside the step"
            if span
            else "Mark the parts of the loop with dsprof.annotate()",
            evidence=(_parts(total, count),),
            confidence="medium",
        )


def _before_forward(run: RunSummary) -> float:
    """Return the share of measured steps from a phase to the next forward, 0 where not recorded."""
    before_ns = [row.before_ns for row in run[Arrivals].ranks.values() if row.before_ns is not None]
    if len(before_ns) < len(run[Arrivals].ranks):
        return 0.0
    return sum(before_ns) / len(before_ns) / (run[Steps].mean_ns * len(run[Steps].measured))


def _named_parts(total: Parts) -> list[tuple[str, int | None]]:
    return [
        (EXPOSED, total.exposed_ns),
        ("copies", total.copies_ns),
        (IDLE, total.idle_ns),
        (_OUTSIDE, total.other_ns),
    ]


def _rest(total: Parts) -> str:
    known = [(name, ns) for name, ns in _named_parts(total) if ns and ns >= 0.005 * total.total_ns]
    known.sort(key=lambda part: -part[1])
    return ", ".join(f"{percent(ns / total.total_ns)} {name}" for name, ns in known) or "nothing"


def _parts(total: Parts, steps: int) -> Table:
    rows = [("computation", total.compute_ns), *_named_parts(total)]
    return Table(
        columns=(Column("part"), Column("of a step", "ms"), Column("share", "share")),
        rows=tuple((n, ns / steps / 1e6, ns / total.total_ns) for n, ns in rows if ns is not None),
        caption="Mean over ranks and measured steps",
    )
