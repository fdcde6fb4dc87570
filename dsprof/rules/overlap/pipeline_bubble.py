"""pipeline-bubble: stages of a pipeline wait for their first and last micro-batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_low
from typing import NamedTuple

import msgspec

from dsprof.analysis.aggregates.pipelines import Pipelines
from dsprof.analysis.aggregates.point_to_point import PointToPoint
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.own_work import own_work_ns
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import duration, percent, plural
from dsprof.rules.causes import EXPOSED
from dsprof.rules.evidence.calls import blocked_ms, share_of_step
from dsprof.rules.rule import Rule, RuleMeta

_LEAST_BUBBLE = 0.01
"""The least bubble that a threshold may demand: no number of micro-batches leaves none."""
_MOST = 0.5
"""The bubble is the cause of waits if it explains at least this share of them."""

_LONGER = 0.1
"""A stage that works longer by this share of the step is worth balancing."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """How much of a step the bubble may be."""

    bubble_share: float = 0.2  # by the schedule; more is judged
    waited_share: float = 0.1  # of the step, measured in sends and receives


class PipelineBubble(Rule):
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
        of_step = pipelines.bubble_of_step(run[Steps].exposed_share or 0.0)
        is_cause = share is None or of_step >= _MOST * share
        is_small, longest = bubble <= thresholds.bubble_share + 1e-9, _longest(run[Steps])
        if is_filled or (is_small and (share is None or not longest.ranks)):
            yield self.meta.finding(Status.PASS, summary)
        else:
            if is_cause and not is_small:
                asked = max(thresholds.bubble_share, _LEAST_BUBBLE)
                found = self._too_few(pipelines, summary, asked, is_measured=share is not None)
            else:
                explains = f" The bubble explains only {percent(of_step)} of the step."
                summary += explains * (not is_cause)
                found = self._other_waits(pipelines, summary, longest)
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

    def _other_waits(self, pipelines: Pipelines, summary: str, longest: _Longest) -> Finding:
        """Report waits that the bubble does not explain: a smaller one may not shorten them."""
        return self.meta.finding(
            Status.INFO,
            summary,
            title="One rank of the pipeline works longer"
            if longest.ranks
            else "Pipeline stages wait longer than the bubble",
            cause=f"Stages also wait for a slower stage, or for transfers.{longest.sentence}",
            action="Shorten these waits before you change the number of micro-batches: balance the "
            "stages, or use faster links between them.",
            problem=longest.sentence.strip(" .")
            or f"The pipeline bubble is {percent(pipelines.bubble or 0.0)} of the schedule",
            fix="Balance the stages, or use faster links",
            ranks=longest.ranks,
            restates=EXPOSED,
            confidence="medium",
        )


class _Longest(NamedTuple):
    """The rank that works longest, and a sentence on it; empty if none stands out."""

    sentence: str = ""
    ranks: tuple[int, ...] = ()


def _longest(steps: Steps) -> _Longest:
    """Name the rank that works longest, if for a tenth of the step longer than the median."""
    own_ns = own_work_ns(steps, steps.ranks)
    if not own_ns:
        return _Longest()
    rank, usual_ns = max(own_ns, key=lambda rank: own_ns[rank]), median_low(own_ns.values())
    more_ns = own_ns[rank] - usual_ns
    if more_ns < _LONGER * steps.mean_ns:
        return _Longest()
    sentence = f" Rank {rank} works {duration(more_ns)} per step longer than the median."
    return _Longest(sentence, (rank,))


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
