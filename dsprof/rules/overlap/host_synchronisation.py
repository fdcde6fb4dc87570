"""host-synchronisation: the program stops in each step until the device has caught up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.host_waits import HostWaits, Stop
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.rules.calls import share_of_step
from dsprof.rules.rule import Column, Finding, RuleMeta, Severity, Status, Table
from dsprof.rules.wording import count, shortened

_ROWS = 16


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When stops are many, and when they cost."""

    calls_per_step: float = 2.0  # of one rank; once a step is where many programs log
    idle_share: float = 0.05  # of the step, in which the device ran no kernel around them
    severe_share: float = 0.2  # from here on a single one is too many


class HostSynchronisation:
    """Weighs the time in which the device stood still around the stops of the host."""

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
            text = "No trace holds times of a device and of who waited for it."
            yield self.meta.finding(Status.NOT_APPLICABLE, text)
            return
        share = share_of_step(waits.idle_ms_per_step, run[Steps])
        summary = (
            f"The host stops {count(waits.calls_per_step)} times a step for the device and is "
            f"blocked {waits.blocked_ms_per_step:.2f} ms; no kernel runs for "
            f"{waits.idle_ms_per_step:.2f} ms of it around these stops ({share:.1%}).{_most(waits)}"
        )
        is_often = waits.calls_per_step >= thresholds.calls_per_step
        if share < thresholds.idle_share or not (is_often or share >= thresholds.severe_share):
            yield self.meta.finding(Status.PASS, summary)
            return
        breakdown = run[Engines].setting("wall_clock_breakdown") is True
        yield self.meta.finding(
            Status.FAIL,
            summary,
            severity=Severity.HIGH if share >= 2 * thresholds.severe_share else Severity.MEDIUM,
            cause="wall_clock_breakdown is true: its timers synchronise around each phase."
            if breakdown
            else "The program, or a library, copies values of the device to the host, copies from "
            "memory that is not pinned, or synchronises with the device.",
            action='Set "wall_clock_breakdown" to false; dsprof times the step without it.'
            if breakdown
            else "Read losses every so many steps (.item() stops the host), copy from pinned "
            "memory with non_blocking=True, and take torch.cuda.synchronize() out of timers and "
            "loggers. overlap_comm with contiguous_gradients or use_multi_rank_bucket_allreduce "
            "set to false stops at each bucket.",
            config_patch={"wall_clock_breakdown": False} if breakdown else None,
            evidence=(_by_call(waits),),
            confidence="medium",
        )


def _most(waits: HostWaits) -> str:
    """Name the calls that block longest."""
    stop = next(iter(_longest(waits)), None)
    if stop is None or not (stop.operator or stop.annotation):
        return ""
    operator = f" in {shortened(stop.operator)}" if stop.operator else ""
    annotation = f", under {shortened(stop.annotation)}" if stop.annotation else ""
    return f" {stop.call}{operator}{annotation} blocks longest."


def _longest(waits: HostWaits) -> list[Stop]:
    return sorted(waits.rows, key=lambda stop: (-waits.rows[stop].held_ns, stop))


def _by_call(waits: HostWaits) -> Table:
    steps = max(waits.rank_steps, 1)
    return Table(
        columns=(
            Column("call"),
            Column("operator"),
            Column("annotation"),
            Column("a step and rank", "count"),
            Column("blocks the host a step", "ms"),
        ),
        rows=tuple(
            (
                *stop,
                round(waits.rows[stop].calls / steps, 2),
                waits.rows[stop].held_ns / steps / 1e6,
            )
            for stop in _longest(waits)[:_ROWS]
        ),
    )


RULE = HostSynchronisation()
