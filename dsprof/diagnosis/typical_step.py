"""The step that headline, bar and comparison speak of: of median length, once the run settled."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np

from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.series import Floats, unsettled
from dsprof.analysis.step_rows import Parts
from dsprof.diagnosis.parts.steps import StepParts, TypicalStep
from dsprof.findings.finding import Finding, Status
from dsprof.findings.wording import duration, plural

_CHANGE = "step-time-change"
_APART = 0.05
"""A mean that differs from the median by more than this share of it is shown, too."""
_LONG = 5
"""A step this many times as long as the median is not typical, such as one with a checkpoint."""
_FEW = 0.05
"""A larger share of long steps is part of what the program does."""
_FASTER = 0.05
"""Steps become faster where the median of those from there on is shorter by this share."""


def typical_step(steps: Steps, findings: Iterable[Finding] = ()) -> TypicalStep | None:
    """Return the median measured step, split as all of them together; None without any.

    Steps before the run has settled are left out: where a finding says that steps become faster,
    those before that step. A few far longer steps are not in the parts.
    """
    rows = [steps.parts[number] for number in steps.measured]
    if not rows:
        return None
    lengths = np.array([row.total_ns for row in rows], np.float64)
    early = _early(steps, findings)
    total_ns, mean_ns = round(median(lengths[early:].tolist())), round(lengths.mean())
    usual, long_ns = _without_long(rows[early:], total_ns)
    found = TypicalStep(
        parts=_split(usual, total_ns),
        statistic=f"median of {len(rows):,} measured steps"
        if len(rows) > 1
        else "the only measured step",
        steps=len(rows) - early,
        long_steps=len(rows) - early - len(usual),
        mean_ns=mean_ns if abs(mean_ns - total_ns) > _APART * total_ns else None,
    )
    if early:
        found.settled_from, found.unsettled_ns = steps.measured[early], round(lengths[:early].max())
        found.statistic = (
            f"median of {plural(found.steps, 'step')} from step {found.settled_from} on; "
            f"up to {duration(found.unsettled_ns)} before"
        )
    if found.long_steps:
        up_to = "up to " if found.long_steps > 1 else ""
        found.statistic += (
            f" (parts exclude {plural(found.long_steps, 'step')} of {up_to}{duration(long_ns)})"
        )
    return found


def _without_long(rows: Sequence[Parts], usual_ns: int) -> tuple[Sequence[Parts], int]:
    """Return the rows but for a few far longer ones, and the longest of all.

    Where most steps call no collective, those that do are what the program does (local SGD).
    """
    silent = 2 * sum(row.calls == 0 for row in rows) > len(rows)
    usual = [row for row in rows if row.total_ns <= _LONG * usual_ns or (silent and row.calls)]
    is_few = len(rows) - len(usual) <= max(_FEW * len(rows), 1)
    return usual if is_few else rows, max(row.total_ns for row in rows)


def _early(steps: Steps, findings: Iterable[Finding]) -> int:
    """Return before how many of the measured steps the run has settled, by the same ranks.

    After more than half of them, the usual level is unknown.
    """
    same = steps.throughout
    times = np.array([same.parts[n].total_ns for n in same.measured], np.float64)
    early = unsettled(times)
    if not early:
        return 0
    changed = [f.steps[0] for f in findings if f.rule == _CHANGE and f.status is Status.INFO]
    places = (bisect_left(same.measured, step) for step in changed)
    early = next((place for place in places if _is_faster_from(place, times)), early)
    count = bisect_left(steps.measured, same.measured[early])
    return count if 2 * count <= len(steps.measured) else 0


def _is_faster_from(place: int, times: Floats) -> bool:
    """Say whether steps take less from a place on: other work may also take longer."""
    before, after = times[:place], times[place:]
    return bool(len(before) and len(after) and np.median(after) < (1 - _FASTER) * np.median(before))


def _split(rows: Sequence[Parts], total_ns: int) -> StepParts:
    """Split a step of this length as the sum of `rows` is split."""
    whole_ns = max(sum(row.total_ns for row in rows), 1)

    def part(name: str) -> int | None:
        values = [getattr(row, name) for row in rows]
        return None if None in values else round(sum(values) * total_ns / whole_ns)

    known = [part(name) for name in ("compute_ns", "exposed_ns", "copies_ns", "idle_ns")]
    compute_ns, exposed_ns, copies_ns, idle_ns = known
    return StepParts(
        step=None,
        compute_ns=compute_ns,
        exposed_comm_ns=exposed_ns,
        copies_ns=copies_ns,
        idle_ns=idle_ns,
        other_ns=max(total_ns - sum(ns or 0 for ns in known), 0),  # each part is rounded
        total_ns=total_ns,
    )
