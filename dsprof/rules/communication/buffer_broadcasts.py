"""buffer-broadcasts: DDP sends a model's buffers from rank 0 in each forward."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.communication import Communication
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Finding, Severity, Status
from dsprof.findings.wording import duration, percent, plural, size
from dsprof.rules.evidence.calls import (
    Calls,
    blocked_ms,
    bytes_per_step,
    calls_per_step,
    calls_table,
    over_all_ranks,
    own_ms,
    sends_buffers,
    share_of_step,
)
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.rules.savings import omitting_saves


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When the broadcasts are worth a change."""

    saved_share: float = 0.01  # of the step, that it is shorter without them


class BufferBroadcasts(Rule):
    """Weighs what DDP sends before it runs the model."""

    meta = RuleMeta(
        id="buffer-broadcasts",
        title="DDP sends no buffers in forward, or they cost little",
        failing_title="DDP sends the model's buffers in each forward",
        why="Before each forward, DDP sends buffers such as the running statistics of BatchNorm "
        "from rank 0 to all ranks. Training in itself does not read these.",
        category="communication",
        order=202,
        needs=(Arrivals, Communication, Run, Steps),
        min_steps=1,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Weigh the broadcasts of the measured steps."""
        if not run[Run].has_ddp:
            yield self.meta.not_applicable("No model is wrapped in DistributedDataParallel.")
            return
        rows = run[Communication].rows
        found = {kind: row for kind, row in rows.items() if sends_buffers(kind, run[Run])}
        sent = over_all_ranks(found, run[Steps])
        if sent:
            yield self._judged(sent, run, thresholds)
        elif run[Steps].is_counted:
            yield self.meta.unknown("No forward was recorded in full detail.")

    def _judged(self, sent: Calls, run: RunSummary, thresholds: Thresholds) -> Finding:
        steps, cost_ms = run[Steps], blocked_ms(sent)
        saving = omitting_saves(own_ms(run, sent), cost_ms)
        costs = saving is not None and share_of_step(saving[0], steps) >= thresholds.saved_share
        calls = plural(calls_per_step(sent), "broadcast")
        took = (
            "; their blocked time was not measured"
            if cost_ms is None
            else f", blocked time {duration(cost_ms * 1e6)} "
            f"({percent(share_of_step(cost_ms, steps))} of the step)"
        )
        return self.meta.finding(
            Status.FAIL if costs else Status.INFO,
            f"{calls} per step and rank in forward, {size(bytes_per_step(sent))} together{took}.",
            severity=Severity.MEDIUM,
            cause="DDP keeps the model's buffers equal on all ranks (broadcast_buffers=True, its "
            "default).",
            action="If the buffers are constants, such as those of rotary embeddings, or running "
            "statistics, such as those of BatchNorm, pass broadcast_buffers=False to "
            "DistributedDataParallel (ddp_broadcast_buffers=False to Hugging Face Trainer). Each "
            "rank then keeps the statistics of its own batches: save and evaluate those of one "
            "rank.",
            problem=f"{calls} of buffers per step",
            fix="Set broadcast_buffers=False",
            evidence=(calls_table(sent),),
            saving_ms_per_step=saving if costs else None,
            saving_from="other",
            confidence="medium",
        )
