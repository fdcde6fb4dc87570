"""host-synchronisation: the program stops in each step until the device has caught up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsprof.analysis.aggregates.engines import Engines
from dsprof.analysis.aggregates.host_waits import RECORDED, HostWaits, Stop
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import duration, percent, plural, shortened
from dsprof.rules.causes import SYNCHRONISED
from dsprof.rules.evidence.calls import share_of_step
from dsprof.rules.rule import Rule, RuleMeta

_ROWS = 16


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When stops are many, and when they cost."""

    calls_per_step: float = 2.0  # of one rank; once a step is where many programs log
    idle_share: float = 0.05  # of the step, in which the device ran no kernel around them
    severe_share: float = 0.2  # from here on a single one is too many


class HostSynchronisation(Rule):
    """Weighs the time in which the device was idle around the stops of the host."""

    meta = RuleMeta(
        id="host-synchronisation",
        title="Host synchronisation is rare or costs little",
        failing_title="The host waits for the device in every step",
        why="While the host waits it launches nothing: the device runs out of work, and "
        "communication has no computation to overlap with.",
        category="overlap",
        order=320,
        leads=True,
        needs=(Engines, HostWaits, Steps),
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Compare the stops with the step."""
        waits = run[HostWaits]
        if not waits.rank_steps and not waits.record_ns:
            yield self.meta.not_applicable(
                "No trace holds device times and the host's waits for the device."
            )
            return
        if not waits.calls:
            yield self.meta.finding(Status.PASS, "The host never waits for the device.")
            return
        recurs = len(run[Steps].measured) > 1 and waits.rank_steps > 0
        share, summary = _of_steps(waits, run[Steps]) if waits.rank_steps else _of_record(waits)
        is_often = waits.calls_per_step >= thresholds.calls_per_step
        if share < thresholds.idle_share or not (is_often or share >= thresholds.severe_share):
            yield self.meta.finding(Status.PASS, summary)
            return
        is_severe = recurs and share >= 2 * thresholds.severe_share
        breakdown = run[Engines].setting("wall_clock_breakdown") is True
        yield self.meta.finding(
            Status.FAIL,
            summary,
            severity=Severity.HIGH if is_severe else Severity.MEDIUM,
            cause="wall_clock_breakdown is true: its timers synchronise around each phase."
            if breakdown
            else "The program or a library copies values from the device to the host, copies from "
            "unpinned memory, or calls synchronize().",
            action='Set "wall_clock_breakdown" to false; dsprof times the step without it.'
            if breakdown
            else "Read losses only every N steps (.item() blocks the host), copy from pinned "
            "memory with non_blocking=True, and remove torch.cuda.synchronize() from timers and "
            "loggers. With overlap_comm, leave contiguous_gradients and "
            "use_multi_rank_bucket_allreduce true: false blocks the host at each bucket.",
            problem=f"The host's waits leave the device {_without_work(waits)}: up to "
            f"{percent(share)} of the {'step' if waits.rank_steps else 'record'}",
            fix="" if breakdown else "Call `.item()` only every N steps",
            config_patch={"wall_clock_breakdown": False} if breakdown else None,
            evidence=(_by_call(waits),),
            restates=SYNCHRONISED,
            title="" if waits.rank_steps else "The host waits for the device",
            confidence="medium" if recurs else "low",
        )


def _of_steps(waits: HostWaits, steps: Steps) -> tuple[float, str]:
    """Return the share of the step in which the device was idle around the stops, and say so."""
    share = share_of_step(waits.idle_ms_per_step, steps)
    return share, (
        f"The host waits for the device {plural(waits.calls_per_step, 'time')} per step, "
        f"{duration(waits.blocked_ms_per_step * 1e6)} in total. {_kept(waits)} for up to "
        f"{duration(waits.idle_ms_per_step * 1e6)} per step ({percent(share)}).{_most(waits)}"
    )


def _of_record(waits: HostWaits) -> tuple[float, str]:
    """Return the same of the recorded time, where no step is marked."""
    share = waits.idle_ns / waits.record_ns
    blocked_ns = sum(sums.held_ns for sums in waits.rows.values())
    return share, (
        f"The host waits for the device {plural(waits.calls, 'time')}, {duration(blocked_ns)} in "
        f"total. {_kept(waits)} for up to {duration(waits.idle_ns)}, {percent(share)} of the "
        f"recorded time.{_most(waits)} No step is marked: start-up may be part of this."
    )


def _kept(waits: HostWaits) -> str:
    return f"These waits leave the device {_without_work(waits)}"


def _without_work(waits: HostWaits) -> str:
    """Say what was measured: a profile shows kernels, and the copies that the host waits for."""
    return "idle" if RECORDED in waits.rows else "without a kernel"


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
    each = " per step and rank" if waits.rank_steps else ""
    steps = max(waits.rank_steps, 1)
    return Table(
        columns=(
            Column("call"),
            Column("operator"),
            Column("annotation"),
            Column(f"calls{each}", "count"),
            Column(f"blocked{each}", "ms"),
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
