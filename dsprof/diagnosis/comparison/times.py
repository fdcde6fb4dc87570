"""The parts of a step in two runs."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from statistics import fmean, median, mode

from dsprof.diagnosis.comparison.model import Judgement, TimeChange
from dsprof.diagnosis.comparison.noise import LEAST_STEPS, Interval, difference
from dsprof.diagnosis.model import Diagnosis
from dsprof.diagnosis.parts.steps import StepParts
from dsprof.findings.wording import duration, plural

PARTS = ("total", "exposed_comm", "compute", "copies", "idle", "other")
TOLERANCE = 0.02
"""Share of the earlier step by which equal runs differ, though the steps of each do not show it."""
LEAST_NS = 5_000_000_000
"""Least total of measured steps: what disturbs a machine lasts for seconds, and a shorter run sees
one state of it."""


def time_changes(before: Diagnosis, after: Diagnosis, unlike: list[str]) -> Iterator[TimeChange]:
    """Compare each part that a run has measured; runs that are `unlike` are not judged."""
    first, second = _measured(before), _measured(after)
    tolerance = TOLERANCE * abs(median([row.total_ns for row in first] or [0]))
    obstacle = _obstacle(first, second, unlike)
    for part in PARTS:
        old, new = _samples(first, part), _samples(second, part)
        if old or new:
            rest = _rest_obstacle(first, second) if part == "other" else ""
            yield _change(part, old, new, tolerance, obstacle or rest)


def _measured(diagnosis: Diagnosis) -> list[StepParts]:
    """Return the steps of which the report shows the median: those after the run has settled.

    Where ranks come or go, only the steps that the usual number of them recorded: the mean over
    others is another.
    """
    typical = diagnosis.steps.typical
    first = (typical.settled_from if typical else None) or 0
    rows = [row for row in diagnosis.steps.rows if row.is_measured and (row.step or 0) >= first]
    usual = mode(row.ranks for row in rows) if rows else None
    return [row for row in rows if row.ranks == usual]


def _obstacle(first: list[StepParts], second: list[StepParts], unlike: list[str]) -> str:
    """Return why the runs are not judged; "" where they are."""
    if unlike:
        return "the runs are not comparable"
    old, new = (next((row.ranks for row in rows if row.ranks), None) for rows in (first, second))
    if old and new and old != new:
        return f"the steps are of {plural(old, 'rank')} before, of {plural(new, 'rank')} after"
    return _too_short(first, second)


def _too_short(first: list[StepParts], second: list[StepParts]) -> str:
    """Return why the noise of a run does not show, and what to do; "" where it shows."""
    runs = {"earlier": first, "later": second}
    which, fewest = min(((run, len(rows)) for run, rows in runs.items()), key=itemgetter(1))
    if fewest < LEAST_STEPS:
        has = plural(fewest, "measured step")
        return f"the {which} run has only {has}; record at least {LEAST_STEPS} in each"
    lasts = {run: sum(row.total_ns for row in rows) for run, rows in runs.items()}
    which, shortest_ns = min(lasts.items(), key=itemgetter(1))
    if shortest_ns < LEAST_NS:
        has = f"{duration(shortest_ns)} of measured steps"
        return f"the {which} run has only {has}; record at least {LEAST_NS / 1e9:g} s in each"
    return ""


def _rest_obstacle(first: list[StepParts], second: list[StepParts]) -> str:
    """Return why the rest of a step is not judged: it contains what could not be measured."""
    measured = {
        tuple(getattr(row, f"{part}_ns") is not None for part in PARTS) for row in [*first, *second]
    }
    return "other contains parts that only some of the steps show" if len(measured) > 1 else ""


def _samples(rows: list[StepParts], part: str) -> list[int]:
    """Return the part of each step that shows it."""
    values = [getattr(row, f"{part}_ns") for row in rows]
    return [value for value in values if value is not None]


def _change(
    part: str, old: list[int], new: list[int], tolerance: float, obstacle: str
) -> TimeChange:
    change = TimeChange(
        part=part,
        before_ns=median(old) if old else None,
        after_ns=median(new) if new else None,
        before_mean_ns=fmean(old) if old else None,
        after_mean_ns=fmean(new) if new else None,
    )
    interval = difference(old, new)
    if obstacle:
        change.why = obstacle
    elif interval is None:
        change.why = "not measurable in one of the runs"
    else:
        change.low_ns, change.high_ns = interval.low - tolerance, interval.high + tolerance
        change.judgement = _judged(interval, tolerance)
    return change


def _judged(interval: Interval, tolerance: float) -> Judgement:
    if interval.low > tolerance:
        return "slower"
    if interval.high < -tolerance:
        return "faster"
    is_same = -tolerance <= interval.low and interval.high <= tolerance
    return "same" if is_same else "inconclusive"
