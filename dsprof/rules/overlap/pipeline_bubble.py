"""pipeline-bubble: stages of a pipeline wait for their first and last micro-batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import msgspec
import numpy as np

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.pipelines import Pipelines
from dsprof.analysis.aggregates.placement import Placement
from dsprof.analysis.aggregates.point_to_point import PointToPoint
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.outliers import chance_of
from dsprof.analysis.run.own_work import own_work_of_steps
from dsprof.analysis.run.votes import CHANCE, STEP_SHARE
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import duration, listed, named, percent, plural, ranks_do
from dsprof.rules.causes import EXPOSED
from dsprof.rules.evidence.calls import blocked_ms, share_of_step
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.rules.savings import about

_LEAST_BUBBLE = 0.01
"""The least bubble that a threshold may demand: no number of micro-batches leaves none."""
_MOST = 0.5
"""The bubble is the cause of waits if it explains at least this share of them."""

_MUCH = 0.1
"""A stage that works longer by this share of the step is no small problem."""
_MOST_STEPS = 256
"""Steps in which all ranks are compared at once."""


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
        needs=(Engines, Pipelines, Placement, PointToPoint, Run, Steps),
        min_steps=4,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Judge the schedule, if there is one and its waits agree."""
        pipelines, transfers = run[Pipelines], run[PointToPoint].of_all
        if pipelines.stages < 2:
            yield self.meta.not_applicable("No pipeline of two or more stages was recorded.")
            return
        slow = _slow_stages(run)
        if slow:
            yield self._unbalanced(slow, run)
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
        is_small = bubble <= thresholds.bubble_share
        if is_filled or is_small:
            if not slow:
                yield self.meta.finding(Status.PASS, summary)
        elif is_cause:
            asked = max(thresholds.bubble_share, _LEAST_BUBBLE)
            found = self._too_few(pipelines, summary, asked, is_measured=share is not None)
            yield msgspec.structs.replace(found, evidence=(_table(pipelines, waited),))
        elif not slow:
            summary += f" The bubble explains only {percent(of_step)} of the step."
            found = self._other_waits(pipelines, summary)
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

    def _other_waits(self, pipelines: Pipelines, summary: str) -> Finding:
        """Report waits that the bubble does not explain: a smaller one may not shorten them."""
        return self.meta.finding(
            Status.INFO,
            summary,
            title="Pipeline stages wait longer than the bubble",
            cause="Stages also wait for a slower stage, or for transfers.",
            action="Shorten these waits before you change the number of micro-batches: balance the "
            "stages, or use faster links between them.",
            problem=f"The pipeline bubble is {percent(pipelines.bubble or 0.0)} of the schedule",
            fix="Balance the stages, or use faster links",
            restates=EXPOSED,
            confidence="medium",
        )

    def _unbalanced(self, slow: _SlowStages, run: RunSummary) -> Finding:
        """Report slow stages: the others wait for them once per micro-batch."""
        share, filling = slow.more_ns / run[Steps].mean_ns, run[Pipelines].filling
        who, longer = ranks_do(slow.ranks, "work"), duration(slow.more_ns)
        action = (
            f"Move layers that take less than {longer} of a step from {slow.named} "
            "to the others; more would make another stage the slowest."
        )
        if run[Engines].engines:
            action += (
                ' The default of PipelineModule, partition_method="parameters", balances '
                'parameters and not time: try "uniform", or "type:REGEX" with the class of the '
                "layers that take longest."
            )
        more_ms, waiting = slow.more_ns / 1e6, 1 - len(slow.ranks) / len(run[Steps].ranks)
        # Balanced, each stage takes its part; while the pipeline fills, little waits for a stage.
        saved = 0.0 if filling is None else min(waiting, 1 - filling)
        saving = about(more_ms * saved, more_ms)
        return self.meta.finding(
            Status.FAIL,
            f"{who} {longer} per step longer than the median ({percent(share)}): the other stages "
            "wait.",
            title="Pipeline stages take unequal time",
            severity=Severity.MEDIUM if share >= _MUCH else Severity.LOW,
            cause=f"The others wait for activations and gradients of {slow.named}, where a "
            "micro-batch takes longer: more work, or a slower processor.",
            action=action,
            problem=f"{who} {longer} longer ({percent(share)})",
            fix=f"Move layers from {slow.named}",
            ranks=slow.ranks,
            saving_ms_per_step=saving,
            exposed_per_saving=waiting,
            explains_ms=0.0 if saving else more_ms * waiting,
            confidence="medium",
        )


class _SlowStages(NamedTuple):
    """All ranks of stages that work longer than the median rank, and by how much."""

    ranks: tuple[int, ...]
    more_ns: float
    named: str


def _slow_stages(run: RunSummary) -> _SlowStages | None:
    """Return the ranks that work longer by a share of a step, with all of their stage.

    Not where chance explains it, or where computation is known and explains less than half: a rank
    also works longer where its sends and receives, or its program, take its own time.
    """
    steps = run[Steps]
    own = own_work_of_steps(steps, steps.ranks, _MOST_STEPS)
    if len({len(one) for one in own.values()}) != 1:
        return None
    rows = np.stack([*own.values()])
    more_ns = rows - np.sort(rows, axis=0)[(len(rows) - 1) // 2]
    means, count = more_ns.mean(axis=1), rows.shape[1]
    # On a CPU, sends and receives take a rank's own time, of inner stages most.
    least = _MUCH if run[Run].is_cpu else STEP_SHARE
    is_slow = means >= max(means.max() / 2, least * steps.mean_ns)
    is_slow &= [chance_of(int(some), count, 2) <= CHANCE for some in (more_ns > 0).sum(axis=1)]
    ranks = tuple(rank for rank, found in zip(own, is_slow, strict=True) if found)
    places = _places(run)
    stages = {places[rank] for rank in ranks if rank in places}
    is_alone = any(places.get(rank) in stages and rank not in ranks for rank in own)
    if not ranks or 2 * len(ranks) > len(own) or is_alone:
        return None
    longest_ns = float(means[is_slow].max())
    if not _compute_longer(steps, ranks, longest_ns):
        return None
    named_stages = f"the stages of {named(ranks)}"
    if run[Pipelines].stages_of_a_rank <= 1 and places.keys() >= set(ranks):
        found = sorted(stages)
        named_stages = f"stage{'s' if len(found) > 1 else ''} {listed(found)}"
    return _SlowStages(ranks, longest_ns, named_stages)


def _places(run: RunSummary) -> dict[int, int]:
    """Return the places of ranks in their pipelines; a group for tied weights is only a part."""
    groups = [one.ranks for one in run[Placement].groups.values() if one.role == "pipeline"]
    return {rank: place for ranks in sorted(groups, key=len) for place, rank in enumerate(ranks)}


def _compute_longer(steps: Steps, slow: tuple[int, ...], more_ns: float) -> bool:
    """Say whether computation is at least half of what ranks work longer; also where unknown."""
    own: list[float] = []
    others: list[float] = []
    for rank, row in steps.ranks.items():
        shown = np.isin(row.number, steps.measured) & ~row.hidden
        if row.compute_ns is None or not shown.any():
            return True
        (own if rank in slow else others).append(float(row.compute_ns[shown].mean()))
    return fmean(own) - min(others, default=0.0) >= _MOST * more_ns


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
