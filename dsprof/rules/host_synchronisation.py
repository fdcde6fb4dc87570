"""host-synchronisation: the program stops in each step until the device has caught up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.host_waits import HostWaits
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.rules.calls import share_of_step
from dsprof.rules.rule import Column, Finding, RuleMeta, Severity, Status, Table


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When stops are many, and when they cost."""

    calls_per_step: float = 2.0  # of one rank; once a step is where many programs log
    idle_share: float = 0.02  # of the step, in which the stream that computes had nothing to do


class HostSynchronisation:
    """Weighs the time in which the stream that computes stood still while the host waited."""

    meta = RuleMeta(
        id="host-synchronisation",
        title="The host seldom stops for the device, or it costs little",
        failing_title="The host stops in each step to wait for the device",
        why="While the host waits it launches nothing, so that the device has nothing to go on "
        "with when it is done, and communication has nothing to run behind.",
        category="overlap",
        needs=(Engines, HostWaits, Steps),
        min_steps=2,
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Compare the stops with the step."""
        waits = run[HostWaits]
        if not waits.rank_steps:
            text = "No trace holds times of a device."
            yield self.meta.finding(Status.NOT_APPLICABLE, text)
            return
        share = share_of_step(waits.idle_ms_per_step, run[Steps])
        summary = (
            f"The host stops {waits.calls_per_step:.3g} times a step for the device; the stream "
            f"that computes is idle {waits.idle_ms_per_step:.2f} ms meanwhile ({share:.1%})."
        )
        costs = share >= thresholds.idle_share
        if not costs or waits.calls_per_step < thresholds.calls_per_step:
            yield self.meta.finding(Status.PASS, summary)
            return
        breakdown = run[Engines].setting("wall_clock_breakdown") is True
        yield self.meta.finding(
            Status.FAIL,
            summary,
            severity=Severity.MEDIUM,
            cause="wall_clock_breakdown is true: its timers synchronise around each phase."
            if breakdown
            else "The program, or a library, calls synchronize() on the device, a stream or an "
            "event.",
            action='Set "wall_clock_breakdown" to false; dsprof times the step without it.'
            if breakdown
            else "Look for torch.cuda.synchronize() in timers and loggers, and for overlap_comm "
            "with contiguous_gradients or use_multi_rank_bucket_allreduce set to false.",
            config_patch={"wall_clock_breakdown": False} if breakdown else None,
            evidence=(
                Table(
                    columns=(Column("stops a step and rank", "count"), Column("idle", "ms")),
                    rows=((round(waits.calls_per_step, 1), waits.idle_ms_per_step),),
                ),
            ),
            confidence="medium",
        )


RULE = HostSynchronisation()
