"""device-idle: the accelerator has nothing to do for much of the time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dsprof.analysis.aggregates.device import Device
from dsprof.analysis.aggregates.idle_causes import NAMES, UNRECORDED, IdleCauses
from dsprof.analysis.summary import RunSummary
from dsprof.files.tables import rows
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import duration, percent
from dsprof.rules.causes import IDLE, SYNCHRONISED
from dsprof.rules.reasons import EVENTS_MISSING, NO_DEVICE_TIMES
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.trace.device_activity import LOADING, SYNCHRONISATION

_START_UP = " Fewer than two steps were measured: start-up may be part of this."


@dataclass(frozen=True, slots=True)
class Thresholds:
    """How much idleness matters, of the time between the first kernel and the last."""

    idle_share: float = 0.3
    severe_share: float = 0.6


class DeviceIdle(Rule):
    """Judges the mean over ranks, then each rank; waiting in a collective is no idleness."""

    meta = RuleMeta(
        id="device-idle",
        title="The device is busy most of the time",
        failing_title="The device is idle: the host does not keep it busy",
        why="An idle accelerator costs as much as a busy one.",
        category="overlap",
        order=140,
        needs=(Device, IdleCauses),
        left_to="late-rank",
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Compare idleness with the limit."""
        device = run[Device]
        if not device.ranks:
            yield self.meta.not_applicable(NO_DEVICE_TIMES)
        elif not device.complete:
            yield self.meta.unknown(EVENTS_MISSING)
        else:
            yield self._judged(device, run[IdleCauses], thresholds)

    def _judged(self, device: Device, causes: IdleCauses, thresholds: Thresholds) -> Finding:
        idle, exposed = device.share("idle_ns"), device.share("exposed_ns")
        shares = device.idle_shares()
        most_idle = max(shares, key=lambda rank: shares[rank])
        is_one = idle < thresholds.idle_share <= shares[most_idle]
        problem = f"The device is idle {percent(idle)} of {device.window}"
        summary = problem
        if is_one:
            idle = shares[most_idle]
            summary += f" (mean over ranks; {percent(idle)} on rank {most_idle})"
            problem = f"The device of rank {most_idle} is idle {percent(idle)} of {device.window}"
        summary += f"; {percent(exposed)} is exposed communication."
        if idle < thresholds.idle_share:
            return self.meta.finding(Status.PASS, summary + _before(device))
        severe = idle >= thresholds.severe_share and device.recurs
        largest, largest_ns = next(iter(causes.order), (UNRECORDED, 0))
        share = largest_ns / max(sum(causes.idle_ns.values()), 1)
        remedy = _remedy(largest, causes)
        return self.meta.finding(
            Status.FAIL,
            f"{summary} Host activity during idle time: {largest} "
            f"({percent(share)}).{_before(device)}{'' if device.recurs else _START_UP}",
            severity=Severity.HIGH if severe else Severity.MEDIUM,
            cause=remedy.cause,
            action=remedy.action,
            problem=problem,
            fix=remedy.fix,
            ranks=(most_idle,) if is_one else (),
            restates=SYNCHRONISED if largest == NAMES[SYNCHRONISATION] else IDLE,
            evidence=(_by_cause(causes), _by_rank(device)),
            confidence="medium" if remedy.is_sure and device.recurs else "low",
        )


def _by_cause(causes: IdleCauses) -> Table:
    whole = max(sum(causes.idle_ns.values()), 1)
    return Table(
        columns=(
            Column("host activity"),
            Column("idle, all ranks", "ns"),
            Column("share", "share"),
        ),
        rows=tuple((name, ns, ns / whole) for name, ns in causes.order),
        caption="What the host did while the device was idle",
    )


def _before(device: Device) -> str:
    """Name the start-up and warm-up that the verdict excludes."""
    rows = [rank.judged for rank in device.complete.values()]
    before_ns, idle_ns = (sum(getattr(r, n) for r in rows) for n in ("before_ns", "before_idle_ns"))
    if not all(row.steps for row in rows) or not before_ns:
        return ""
    each = f"{duration(before_ns / len(rows))} of start-up and warm-up"
    return f" Excluded: {each}, {percent(idle_ns / before_ns)} idle."


def _by_rank(device: Device) -> Table:
    windows = [(rank, row.judged, row.kernels) for rank, row in device.complete.items()]
    rows = sorted(windows, key=lambda item: -item[1].idle_ns)[:16]
    return Table(
        columns=(
            Column("rank"),
            Column("idle", "ns"),
            Column("compute", "ns"),
            Column("exposed communication", "ns"),
            Column("copies", "ns"),
            Column("kernels", "count"),
        ),
        rows=tuple(
            (rank, row.idle_ns, row.compute_ns, row.exposed_ns, row.copies_ns, kernels)
            for rank, row, kernels in rows
        ),
        caption="The most idle ranks first",
    )


class Remedy(NamedTuple):
    """One cause of idle time, and the action against it, at length and in a few words."""

    cause: str
    action: str
    fix: str
    is_sure: bool


REMEDIES = {
    row["activity"]: Remedy(row["cause"], row["action"], row["fix"], row["sure"] == "yes")
    for row in rows("rules/knowledge/idle_remedies.csv")
}

_ONCE_SHARE = 2 / 3
"""A call with this share of the time of a cause does not recur: in two steps each has half."""


def _remedy(name: str, causes: IdleCauses) -> Remedy:
    """Return what helps against a cause; of a single call it is unknown whether it recurs."""
    remedy = REMEDIES[name]
    once = min(causes.longest_ns.get(name, 0) / max(causes.idle_ns.get(name, 0), 1), 1.0)
    if once < _ONCE_SHARE or name == NAMES[LOADING]:
        return remedy
    return Remedy(
        f"The longest call of each rank takes {percent(once)} of this time: it may be start-up, or "
        "a rare event.",
        "Profile more steps, after a warm-up. If it recurs, "
        f"{remedy.action[0].lower()}{remedy.action[1:]}",
        "Profile more steps, after a warm-up",
        is_sure=False,
    )
