"""pipeline-bubble: stages of a pipeline wait for their first and last micro-batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from dsprof.analysis.aggregates.pipelines import Pipelines
from dsprof.analysis.aggregates.point_to_point import PointToPoint
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import percent, plural
from dsprof.rules.causes import EXPOSED
from dsprof.rules.evidence.calls import blocked_ms, share_of_step
from dsprof.rules.rule import Rule, RuleMeta

_LEAST_BUBBLE = 0.01
"""The least bubble that a threshold may demand: no number of micro-batches leaves none."""
_MOST = 0.5
"""The bubble is the cause of waits if it explains at least this share of them."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """How much of a step the bubble may be."""

    bubble_share: float = 0.2  # by the schedule; more is judged
    waited_share: float = 0.1  # of the step, measured in sends and receives


class PipelineBubble:
    """Compares the bubble that the schedule must have with what stages wait for each other."""

    meta = RuleMeta(
        id="pipeline-bubble",
        title="The pipeline has enough micro-batches",
        failing_title="Pipeline stages are idle: too few micro-batches",
        why="A stage is idle before its first micro-batch and after its last: (p-1)/(m+p-1) of the "
        "time with p stages and m micro-batches.",
        category="overlap",
        order=330,
        needs=(Pipelines, Steps, PointToPoint),
        min_steps=4,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Judge the schedule, if there is one and its waits agree."""
        pipelines, transfers = run[Pipelines], run[PointToPoint].of_all
        if pipelines.stages < 2:
            yield self.meta.not_applicable("No pipeline of two or more stages was recorded.")
            return
        micro_batches, bubble = pipelines.micro_batches, pipelines.bubble
        if bubble is None:
            yield self.meta.unknown(
                "Unknown: the bubble of a zero-bubble or V-shaped schedule is not computed."
                if pipelines.is_of_other_kind
                else "Unknown: the number of micro-batches was not recorded."
            )
            return
        waited = blocked_ms(transfers) if transfers else None
        share = None if waited is None else share_of_step(waited, run[Steps])
        summary = (
            f"With {pipelines.stages} stages and "
            f"{plural(micro_batches, 'micro-batch', 'micro-batches')} the bubble is "
            f"{percent(bubble)} of the schedule"
        )
        summary += (
            "." if share is None else f"; stages wait {percent(share)} of the step for others."
        )
        is_filled = share is not None and share < thresholds.waited_share
        if is_filled or bubble <= thresholds.bubble_share + 1e-9:
            yield self.meta.finding(Status.PASS, summary)
        else:
            of_step = pipelines.bubble_of_step(run[Steps].exposed_share or 0.0)
            if share is None or of_step >= _MOST * share:
                asked = max(thresholds.bubble_share, _LEAST_BUBBLE)
                found = self._too_few(pipelines, summary, asked, is_measured=share is not None)
            else:
                found = self._other_waits(pipelines, summary, of_step)
            yield msgspec.structs.replace(found, evidence=(_table(pipelines, waited),))

    def _too_few(
        self, pipelines: Pipelines, summary: str, bubble: float, *, is_measured: bool
    ) -> Finding:
        needed = pipelines.micro_batches_for(bubble)
        return self.meta.finding(
            Status.FAIL if is_measured else Status.INFO,
            summary,
            severity=Severity.MEDIUM,
            cause="There are too few micro-batches for so many stages.",
            action=f"Divide a step into {needed} micro-batches or more (a bubble of "
            f"{percent(bubble)}): raise gradient_accumulation_steps and lower the micro-batch size "
            "by the same factor; or use fewer stages, or a schedule with interleaved stages.",
            problem=f"The pipeline bubble is {percent(pipelines.bubble or 0.0)} of the schedule",
            fix=f"Divide a step into {needed} micro-batches or more",
            confidence="medium",
        )

    def _other_waits(self, pipelines: Pipelines, summary: str, of_step: float) -> Finding:
        """Report waits that the bubble does not explain: a smaller one may not shorten them."""
        return self.meta.finding(
            Status.INFO,
            f"{summary} The bubble explains only {percent(of_step)} of the step.",
            title="Pipeline stages wait longer than the bubble",
            cause="Stages also wait for a slower stage, or for transfers.",
            action="Shorten these waits before you change the number of micro-batches: balance the "
            "stages, or use faster links between them.",
            problem=f"The pipeline bubble is {percent(pipelines.bubble or 0.0)} of the schedule",
            fix="Balance the stages, or use faster links",
            restates=EXPOSED,
            confidence="medium",
        )


def _table(pipelines: Pipelines, waited_ms: float | None) -> Table:
    return Table(
        columns=(
            Column("stages", "count"),
            Column("micro-batches", "count"),
            Column("bubble in the schedule", "share"),
            Column("waited for other stages", "ms"),
        ),
        rows=((pipelines.stages, pipelines.micro_batches, pipelines.bubble, waited_ms),),
    )


RULE: Rule = PipelineBubble()
