"""unbatched-point-to-point: sends and receives that could be one batch are launched singly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.pipelines import Pipelines
from dsprof.analysis.aggregates.point_to_point import PointToPoint
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import count, duration
from dsprof.rules.evidence.calls import (
    AnyCalls,
    blocked_ms,
    bytes_per_step,
    calls_per_step,
    share_of_step,
)
from dsprof.rules.rule import Rule, RuleMeta

_BATCHING = ("nccl", "rccl", "xccl", "hccl")
"""Backends that launch a batch as one; gloo and mpi send singly, batched or not."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When transfers are many, and when they cost."""

    calls_per_step: float = 4.0  # of one rank, of sends and receives
    held_share: float = 0.02  # of the step


class UnbatchedPointToPoint(Rule):
    """Judges ranks that both send and receive: only those have something to put together."""

    meta = RuleMeta(
        id="unbatched-point-to-point",
        title="Sends and receives are batched, or rare",
        failing_title="Sends and receives are not batched",
        why="Each transfer outside a batch is its own kernel in a two-rank communicator: sends "
        "and receives wait for each other. A batch runs both at once.",
        category="communication",
        order=230,
        needs=(Engines, Pipelines, Steps, PointToPoint),
        min_steps=1,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Weigh the transfers that were launched singly."""
        rows = run[PointToPoint].rows
        if not rows:
            text = "No send or receive was recorded in full detail."
            yield self.meta.absent(text, is_unknown=run[Steps].is_counted)
            return
        if not any(_can_batch(kind.backend) for kind in rows):
            yield self.meta.not_applicable(
                "Not applicable: this backend sends separately, batched or not."
            )
            return
        both_ways = run[PointToPoint].both_ways_of_all
        single = {kind: row for kind, row in both_ways.items() if _can_batch(kind.backend)}
        if calls_per_step(single) >= thresholds.calls_per_step:
            yield self._judged(run, single, thresholds)

    def _judged(self, run: RunSummary, single: AnyCalls, thresholds: Thresholds) -> Finding:
        cost_ms, main = blocked_ms(single), run[Engines].main
        is_deepspeed = main is not None and main.pipeline_stages > 1
        is_pipeline = run[Pipelines].stages > 1
        costs = share_of_step(cost_ms or 0.0, run[Steps]) >= thresholds.held_share
        fails = costs and not is_pipeline
        took = "" if cost_ms is None else f"; blocked time {duration(cost_ms * 1e6)}"
        return self.meta.finding(
            Status.FAIL if fails else Status.INFO,
            f"{count(calls_per_step(single))} sends and receives per step and rank are launched "
            f"separately{took}.",
            severity=Severity.LOW,
            cause="DeepSpeed's pipeline sends and receives in turn, by design."
            if is_deepspeed
            else "A stage of a pipeline waits for its neighbours, batched or not."
            if is_pipeline
            else "isend and irecv, or send and recv, are called one after the other.",
            action="No change is needed; torch.distributed.pipelining batches its transfers."
            if is_deepspeed
            else "Pass a list of P2POp to torch.distributed.batch_isend_irecv.",
            evidence=(
                Table(
                    columns=(
                        Column("transfers"),
                        Column("per step and rank", "count"),
                        Column("bytes per step", "bytes"),
                        Column("blocked per step", "ms"),
                    ),
                    rows=tuple(
                        (
                            kind.requested or kind.family,
                            round(sums.calls_per_step, 1),
                            round(bytes_per_step({kind: sums})),
                            sums.exposed_ms_per_step,
                        )
                        for kind, sums in sorted(single.items())
                    ),
                ),
            ),
            confidence="medium",
        )


def _can_batch(backend: str) -> bool:
    return any(name in backend for name in _BATCHING)
