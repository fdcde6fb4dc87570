"""late-rank in profiles: the rank whose communication kernels are far shorter than all others'.

Kernels of a collective begin when a rank arrives and end together, so those of the last to arrive
are by far the shortest. What the others wait for it is summed over the collectives that all ranks
recorded, for windows may be of different length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.device import Device, RankDevice
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.lateness import Lateness, lateness
from dsprof.analysis.run.outliers import chance_of
from dsprof.analysis.run.wait_attribution import Attribution, attribution
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import duration, percent, plural, ranks_do
from dsprof.rules.causes import EXPOSED
from dsprof.rules.communication.late_rank_case import Thresholds
from dsprof.rules.communication.late_rank_causes import BY_KERNELS, by_parts, unknown
from dsprof.rules.reasons import EVENTS_MISSING
from dsprof.rules.rule import RuleMeta

_MOST = 2 / 3
"""A rank explains the exposed communication if it causes at least this share of it."""

_ONE_STEP = (
    " Only one step was measured: the delay may only show that profilers started at different "
    "times."
)


def judge_kernels(meta: RuleMeta, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
    """Name the rank whose communication kernels are far shorter than those of all others."""
    device, facts = run[Device], run[Run]
    if problem := _undecidable(device, facts):
        status, text = problem
        yield meta.finding(status, text)
        return
    late = lateness(run[Arrivals].matched, run[Steps].measured or None)
    if not late.collectives:
        yield meta.unknown("Unknown: no collective was matched across the ranks.")
        return
    spent_ns = late.waited_in_all_ns + late.transfer_ns
    place = int(spent_ns.argmin())
    rank, window = late.ranks[place], device.ranks[late.ranks[place]].judged
    least_ns = min(int(ns) for i, ns in enumerate(spent_ns) if i != place)
    waited_ns = int(late.caused_ns[place])
    count, step_ns = max(window.steps, 1), run[Steps].mean_ns if window.steps else 0
    share = waited_ns / count / (step_ns or max(window.span_ns / count, 1))
    is_shortest = spent_ns[place] <= thresholds.communication_ratio * least_ns
    if not is_shortest or share < thresholds.waited_share:
        return
    # As in a recorded run: so few steps may fall on one rank by chance.
    is_proven = chance_of(window.steps, window.steps, len(late.ranks)) <= thresholds.chance
    severe = share >= thresholds.severe_share and window.steps != 1
    split = attribution(run)
    is_most = split is not None and split.waiting >= _MOST * (split.waiting + split.transfer)
    excess = {part: ns / count for part, ns in _excess(device.ranks, rank).items()}
    why = by_parts(BY_KERNELS, rank, excess, thresholds.cause_share * waited_ns / count)
    cause, action, fix, _ = why or unknown(rank, has_parts=True)
    of = "per step" if window.steps else "of the recorded time"
    doubt = _ONE_STEP if window.steps == 1 else ""
    whom = "every step" if window.steps > 1 else "the others"
    delay = f"{duration(waited_ns / count)} ({percent(share)})"
    yield meta.finding(
        Status.FAIL,
        f"{ranks_do((rank,), 'delay')} the others by {duration(waited_ns / count)} {of} "
        f"({percent(share)}): it arrives last in {int(late.lasts[place])} of "
        f"{plural(int(late.met[place]), 'collective')}{_of_steps(window.steps)}."
        f"{_exposed(split)}{doubt}",
        severity=Severity.HIGH if severe else Severity.MEDIUM,
        cause=f"A collective's kernels start when their rank arrives and end together. Those of "
        f"rank {rank} are by far the shortest, so it arrives last. {cause}",
        action=action,
        problem=f"Rank {rank} delays {whom} by {delay}",
        fix=fix,
        ranks=(rank,),
        evidence=(_by_rank(device.ranks, late, window.steps),),
        restates=EXPOSED if is_most else "",
        confidence="low" if doubt else "high" if severe and is_proven else "medium",
    )


def _of_steps(steps: int) -> str:
    return f" of {plural(steps, 'measured step')}" if steps else ""


def _exposed(split: Attribution | None) -> str:
    """Say how much of the wait costs time: part of it may be behind computation."""
    if split is None:
        return ""
    return f" {percent(split.waiting)} of the step (mean over ranks) is exposed waiting."


def _excess(ranks: Mapping[int, RankDevice], late: int) -> dict[str, float]:
    """Return by how much each part of a device's time is above the median of the others, in ns.

    As shares of the window of each: windows may be of different length.
    """
    span = max(ranks[late].judged.span_ns, 1)
    found = {}
    for part in BY_KERNELS:
        shares = {
            rank: getattr(row.judged, part) / max(row.judged.span_ns, 1)
            for rank, row in ranks.items()
        }
        found[part] = (shares.pop(late) - median(shares.values())) * span
    return found


def _undecidable(device: Device, run: Run) -> tuple[Status, str] | None:
    if len(device.complete) < len(device.ranks):
        return Status.UNKNOWN, EVENTS_MISSING
    if missing := [rank for rank in range(run.first.world_size) if rank not in device.ranks]:
        count = len(missing)
        text = f"Unknown: no times of {count} of {run.first.world_size} ranks were recorded: "
        return Status.UNKNOWN, text + "a late rank may be among them."
    if not any(row.communication_kernels for row in device.ranks.values()):
        return Status.NOT_APPLICABLE, "No communication kernel was recorded."
    return None


def _by_rank(ranks: Mapping[int, RankDevice], late: Lateness, steps: int) -> Table:
    of = "Mean per measured step" if steps else "Whole record: no step is marked"
    caused_ns = late.caused_ns
    order = sorted(range(len(late.ranks)), key=lambda place: -int(caused_ns[place]))[:16]
    sums = (caused_ns, late.waited_in_all_ns, late.transfer_ns)
    rows = []
    for place in order:
        window = ranks[late.ranks[place]].judged
        times = [*(int(column[place]) for column in sums), window.idle_ns, window.compute_ns]
        rows.append((late.ranks[place], *(ns // max(steps, 1) for ns in times)))
    return Table(
        columns=(
            Column("rank"),
            Column("time others waited for it", "ns"),
            Column("time it waited for others", "ns"),
            Column("transfer", "ns"),
            Column("idle", "ns"),
            Column("compute", "ns"),
        ),
        rows=tuple(rows),
        caption=f"{of}; collectives that all ranks recorded",
    )
