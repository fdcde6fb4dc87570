"""step-time-change: at one moment of the run steps become slower."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import numpy as np

from dsprof.analysis.aggregates.history import History
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.busy_spans import mean_step_ns
from dsprof.analysis.run.delays import delays
from dsprof.analysis.run.series import Change, Floats, change_of, rises_steadily, sigma, spell_of
from dsprof.analysis.run.step_columns import StepColumns, step_columns
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import capitalised, duration, named, percent
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.rules.steps.slow_spans import SlowSpans
from dsprof.rules.steps.step_parts import PARTS, growing_part, part_columns, passed, too_few
from dsprof.trace.columns import IntArray

_OF_HOST = (
    "another program on the host, a throttled clock, different data, or a background task of the "
    "run that started then"
)
_OF_NETWORK = (
    "other traffic on the network, a link or an adapter that lost speed, or data that is uneven "
    "over the ranks from then on"
)
_OF_CPUS = (
    "other programs or threads that take processor time from communication, or data that is uneven "
    "over the ranks from then on"
)
"""On one host, where all ranks send over the same loopback."""
_WORK = {"micro_steps": "micro-steps", "calls": "collectives", "nbytes": "bytes sent"}


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Limits of a change."""

    steps: int = 20  # after warm-up; fewer do not tell
    least_side: int = 5  # steps before and after it
    share: float = 0.10  # of the step before: by so much it gets longer
    severe_share: float = field(default=0.5, metadata={"maximum": None})
    sigmas: float = 3.0  # of the scatter that is left; a line through all steps leaves more
    chance: float = 0.001  # of it in a steady run
    part_share: float = 0.6  # of the change, that one part must explain to be named
    work_share: float = 0.05  # more or fewer collectives, bytes or micro-steps are other work
    run_share: float = 0.02  # of the run is lost, where only sums over time show it


class StepTimeChange:
    """Looks for one change of level; what drifts is judged by step-time-drift.

    On a straight rise by R the levels differ by R / 2, and the scatter left is 0.185 R: no change.
    """

    meta = RuleMeta(
        id="step-time-change",
        title="Step time does not change during the run",
        failing_title="Steps become slower at one moment",
        why="A sudden change has one cause, at a known step.",
        category="steps",
        order=400,
        needs=(History, Run, Steps),
    )
    thresholds = Thresholds()

    def check(self, run: RunSummary, thresholds: Thresholds) -> Iterable[Finding]:
        """Name the step, and what got longer from there on."""
        steps = run[Steps]
        series = steps.throughout.series
        most = max(map(len, series))
        if found := self._in_detail(run, thresholds) or self._in_sums(run, thresholds):
            yield found
        elif most < thresholds.steps:
            yield too_few(self.meta, steps, most, thresholds.steps)
        else:
            yield passed(self.meta, "Step time does not change", series, thresholds.steps)

    def _in_detail(self, run: RunSummary, thresholds: Thresholds) -> Finding | None:
        steps = run[Steps]
        for numbers in steps.throughout.series:
            columns = step_columns(steps, numbers)
            times = columns.total_ns
            spell = spell_of(times, thresholds.share)
            if spell and _are_delayed(steps, columns.number[spell]):
                spell = None
            if change := _change(times, spell, thresholds):
                at = _first(steps.throughout, columns, change)
                last = int(columns.number[spell.stop - 1]) if spell else None
                return self._finding(run[Run], columns, change, at, last, thresholds)
        return None

    def _in_sums(self, run: RunSummary, thresholds: Thresholds) -> Finding | None:
        """Judge the steps of a rolling recording that have no details; by spans of time."""
        history = run[History]
        _, finest = history.finest
        spans = {begin_s: span for begin_s, span in finest.items() if span.rank_steps}
        if not (history.left_out and run[Run].selection.steps is None):
            return None
        times = np.array([mean_step_ns(span) for span in spans.values()], np.float64)
        spell = spell_of(times, thresholds.share)
        change = _change(times, spell, thresholds)
        if change is None or change.after < change.before:
            return None
        place = np.arange(len(times))
        after = (place >= change.at) & (place < (spell.stop if spell else len(times)))
        found = SlowSpans.of(spans, after, change.after - change.before)
        if found.lost_share < thresholds.run_share or found.are_of_a_rank(history):
            return None
        since = f"from about step {found.first:,} on"
        if spell:
            since = f"from about step {found.first:,} to {found.last:,}"
        text = _lengthened(since, change)
        if found.bytes_changed(thresholds.work_share):
            return self._other_work(text, found.first, ["nbytes"], found.table)
        cause, part = found.cause(thresholds.part_share)
        what = _suspects(run[Run], part)
        return self._slower(
            text, since, found.first, change, cause, found.ranks, what, found.table, thresholds
        )

    def _finding(
        self,
        run: Run,
        columns: StepColumns,
        change: Change,
        at: int,
        last: int | None,
        thresholds: Thresholds,
    ) -> Finding:
        after = columns.number >= columns.number[change.at]
        since = f"from step {at} on"
        if last is not None:
            after &= columns.number <= last
            since = f"from step {at} to {last}"
        more_ns = change.after - change.before
        text = _lengthened(since, change)
        table = _table(columns, after, at if last is None else None)
        if work := columns.work_changed(~after, after, thresholds.work_share):
            return self._other_work(text, at, work, table)
        if more_ns < 0:
            return self.meta.finding(
                Status.INFO,
                text,
                title="Steps become faster at one moment",
                cause=(
                    "The slow start lasts longer than the excluded warm-up: compilation, caches, "
                    "or another program that ended."
                ),
                problem=f"Steps take {percent(-more_ns / change.before)} less from step {at} on",
                steps=(at,),
                evidence=(table,),
                confidence="medium",
            )
        cause, ranks, part = _cause(run, columns, after, more_ns, thresholds)
        explains_ms = more_ns * float(after.mean()) / 1e6 if part == "exposed_ns" else 0.0
        what = _suspects(run, part)
        found = self._slower(text, since, at, change, cause, ranks, what, table, thresholds)
        return msgspec.structs.replace(found, explains_ms=explains_ms)

    def _other_work(self, text: str, at: int, work: Iterable[str], table: Table) -> Finding:
        kinds = ", ".join(_WORK[name] for name in work)
        return self.meta.finding(
            Status.INFO,
            f"{text} Its work also changed: {kinds}.",
            title="The work per step changes during the run",
            cause=f"The program's work changes at step {at:,}.",
            problem=f"The work per step changes at step {at:,}",
            steps=(at,),
            evidence=(table,),
            confidence="high",
        )

    def _slower(
        self,
        text: str,
        since: str,
        at: int,
        change: Change,
        cause: str,
        ranks: tuple[int, ...],
        suspects: str,
        table: Table,
        thresholds: Thresholds,
    ) -> Finding:
        share = (change.after - change.before) / change.before
        return self.meta.finding(
            Status.FAIL,
            text,
            severity=Severity.HIGH if share >= thresholds.severe_share else Severity.MEDIUM,
            cause=cause,
            action=f"Check what happened at step {at:,}{_on(ranks)}: {suspects}.",
            problem=f"Steps take {percent(share)} longer {since}",
            fix=f"Check what happened at step {at:,}{_on(ranks)}",
            ranks=ranks,
            steps=(at,),
            evidence=(table,),
            confidence="medium",
        )


def _lengthened(since: str, change: Change) -> str:
    return (
        f"{capitalised(since)} a step takes {duration(change.after)} instead of "
        f"{duration(change.before)} ({percent(change.after / change.before - 1, sign='+')})."
    )


def _are_delayed(steps: Steps, numbers: IntArray) -> bool:
    """Whether most of these steps are those that periodic-slow-step names."""
    found = delays(steps)
    return found is not None and 2 * np.count_nonzero(np.isin(numbers, found.steps)) > len(numbers)


def _first(steps: Steps, columns: StepColumns, change: Change) -> int:
    """Return the first step of the new level, also if it is between two of the columns."""
    last, first = columns.number[change.at - 1 : change.at + 1].tolist()
    for number in [number for number in steps.numbers if last < number < first][::-1]:
        time = steps.parts[number].total_ns
        if abs(time - change.after) > abs(time - change.before):
            break
        first = number
    return int(first)


def _rise(times: Floats, spell: slice) -> Change:
    """Return the change to a slower stretch, as against all other steps."""
    inside = np.zeros(len(times), np.bool_)
    inside[spell] = True
    usual, slow = float(np.median(times[~inside])), float(np.median(times[inside]))
    scatter = sigma(times - np.where(inside, slow, usual))
    return Change(spell.start, usual, slow, scatter, p=0.0)


def _change(times: Floats, spell: slice | None, thresholds: Thresholds) -> Change | None:
    """Return a change of level: to the slower stretch, if there is one."""
    change = _rise(times, spell) if spell else change_of(times)
    if change is None or not _is_level(change, len(times), thresholds):
        return None
    return change if spell or not rises_steadily(times, change) else None


def _is_level(change: Change, count: int, thresholds: Thresholds) -> bool:
    more = abs(change.after - change.before)
    return (
        count >= thresholds.steps
        and change.p <= thresholds.chance
        and thresholds.least_side <= change.at <= count - thresholds.least_side
        and more >= thresholds.share * change.before
        and more >= thresholds.sigmas * change.scatter
    )


def _cause(
    run: Run, columns: StepColumns, after: np.ndarray, more_ns: float, thresholds: Thresholds
) -> tuple[str, tuple[int, ...], str]:
    """Say what got longer: on which ranks, if not on all, else in which part of the step."""
    ranks = columns.ranks_behind(~after, after, more_ns / 2)
    part = growing_part(columns.growth(~after, after), more_ns, thresholds.part_share)
    unchanged = "The work per step did not change."
    if ranks:
        is_known = not (columns.left_out or run.missing_ranks)
        others = "the others wait" if is_known else "whether others did is unknown"
        who = f"Only {named(ranks)}" if is_known else capitalised(named(ranks))
        return f"{unchanged} {who} got slower; {others}.", ranks, ""
    slower = f"{PARTS[part]}, on {columns.ranks}" if part else "unknown"
    return f"{unchanged} The slower part is {slower}.", (), part


def _suspects(run: Run, part: str) -> str:
    if part != "exposed_ns":
        return _OF_HOST
    return _OF_CPUS if run.is_cpu and run.is_one_host else _OF_NETWORK


def _on(ranks: tuple[int, ...]) -> str:
    return f" on {named(ranks)}" if ranks else ""


def _table(columns: StepColumns, after: np.ndarray, at: int | None) -> Table:
    """List the parts of steps from `at` on and before; None: of those in `after` and all others."""
    named_columns = part_columns(columns)
    labels, caption = ("others", "slow"), "Slow steps and all others, mean over ranks"
    if at is not None:
        labels, caption = ("before", "after"), f"Before step {at} and from it on, mean over ranks"
    return Table(
        columns=(Column("median of a step"), *(Column(label, "ns") for label in labels)),
        rows=tuple(
            (name, round(float(np.median(c[~after]))), round(float(np.median(c[after]))))
            for name, c in named_columns.items()
        ),
        caption=caption,
    )


RULE: Rule = StepTimeChange()
