"""step-time-change: steps become slower at one moment of the run, or for a while."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from dsprof.analysis.aggregates.history import History
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.busy_spans import mean_step_ns
from dsprof.analysis.run.delays import delays
from dsprof.analysis.run.series import change_of, spells_of
from dsprof.analysis.run.step_columns import StepColumns, step_columns
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import capitalised, duration, named, percent, some
from dsprof.rules.causes import LATE
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.rules.steps.slow_spans import SlowSpans
from dsprof.rules.steps.step_levels import (
    Ends,
    Kind,
    Level,
    Thresholds,
    is_unclear,
    kinds_of,
    kinds_of_sums,
    levels_of,
)
from dsprof.rules.steps.step_parts import (
    OF_ALL,
    PARTS,
    SAME_WORK,
    WORKING,
    few_in_turn,
    part_columns,
    passed,
    too_few,
)

_OF_HOST = (
    "another program on the host, a throttled clock, longer sequences or other data, or a "
    "background task of the run that started then"
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
_FOR_A_WHILE = "Steps are slower for a while"
_MOST = 0.8
"""Ranks that explain less of a change than this are not all of its cause."""
_SAME = "Step time does not change"
_IN_A_LINE = 2
"""A headline names at most so many stretches."""


class _Told(NamedTuple):
    """A level as sentences state it."""

    level: Level
    ends: Ends
    table: Table
    step: str = "step"  # what its first number is called

    @property
    def firsts(self) -> tuple[int, ...]:
        """The first step of each stretch."""
        return tuple(first for first, _ in self.ends)

    @property
    def is_to_the_end(self) -> bool:
        """Whether it is one stretch, which lasts to the end."""
        return len(self.ends) == 1 and self.ends[0][1] is None

    @property
    def since(self) -> str:
        """Say in which steps."""
        spells = [f"{a:,} on" if b is None else f"{a:,} to {b:,}" for a, b in self.ends]
        return f"from {self.step} {_joined(spells)}"

    @property
    def summary(self) -> str:
        """Say by how much the steps take longer, or less long."""
        change = self.level.change
        return (
            f"{capitalised(self.since)} a step takes {duration(change.after)} instead of "
            f"{duration(change.before)} ({percent(change.after / change.before - 1, sign='+')})."
        )


class StepTimeChange(Rule):
    """Looks for a change of level, or stretches; what drifts is judged by step-time-drift.

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
        found = [*self._in_detail(run, thresholds)] or [*self._in_sums(run, thresholds)]
        if found:
            yield from found
        elif most < thresholds.steps:
            yield too_few(self.meta, steps, most, thresholds.steps)
        else:
            unclear = next(self._unclear(run, thresholds), None)
            yield unclear or passed(self.meta, _SAME, series, thresholds.steps)

    def _unclear(self, run: RunSummary, thresholds: Thresholds) -> Iterator[Finding]:
        """Say where steps become slower for good, but stand out little from their scatter."""
        for numbers in run[Steps].throughout.series:
            columns = step_columns(run[Steps], numbers, run[Run].missing_ranks)
            change = change_of(columns.total_ns)
            if change and is_unclear(columns.total_ns, change, thresholds):
                more = percent(change.after / change.before - 1, sign="+")
                yield self.meta.finding(
                    Status.INFO,
                    f"From about step {columns.number[change.at]:,} on a step takes "
                    f"{duration(change.after)} instead of {duration(change.before)} ({more}), but "
                    f"steps scatter by {duration(change.scatter)}.",
                    title="Steps may have become slower at one moment",
                    cause="Unknown: the change is less than "
                    f"{thresholds.sigmas:g} times the scatter.",
                    action="Compare the time of this step with the logs of the job and the host.",
                    steps=(int(columns.number[change.at]),),
                    confidence="low",
                )

    def _in_detail(self, run: RunSummary, thresholds: Thresholds) -> Iterator[Finding]:
        steps = run[Steps]
        for numbers in steps.throughout.series:
            columns = step_columns(steps, numbers, run[Run].missing_ranks)
            spells = spells_of(columns.total_ns, thresholds.share, thresholds.chance)
            if delayed := delays(steps) if spells.slow else None:  # which periodic-slow-step names
                is_delayed = np.isin(columns.number, delayed.steps)
                kept = [one for one in spells.slow if 2 * is_delayed[one].mean() <= 1]
                spells = spells._replace(slow=kept)
            kinds = partial(kinds_of, columns, thresholds)
            levels = levels_of(columns.total_ns, spells, kinds, thresholds)
            for level in levels:
                ends = level.ends_in(columns, steps.throughout)
                told = _Told(level, ends, _table(columns, level, ends))
                (kind,) = kinds(level.is_usual, [level.is_slow])
                yield self._finding(run[Run], columns, told, kind, thresholds)
            if levels:
                return

    def _in_sums(self, run: RunSummary, thresholds: Thresholds) -> Iterator[Finding]:
        """Judge the steps of a rolling recording that have no details; by spans of time."""
        history = run[History]
        _, finest = history.finest
        spans = {begin_s: span for begin_s, span in finest.items() if span.rank_steps}
        if not (history.left_out and run[Run].selection.steps is None):
            return
        times = np.array([mean_step_ns(span) for span in spans.values()], np.float64)
        spells = spells_of(times, thresholds.share, thresholds.chance)
        hosts = run[Run].hosts
        kinds = partial(kinds_of_sums, spans, hosts, thresholds)
        slowest = [span.slowest[2] for span in spans.values()]
        for level in levels_of(times, spells, kinds, thresholds):
            found = SlowSpans.of(spans, level.is_slow, level.is_usual, hosts)
            lost = found.lost_ns >= thresholds.run_share * sum(s.total_ns for s in spans.values())
            if level.more_ns > 0 and lost and not found.are_of_a_rank(history):
                told = _Told(level, level.ends(slowest), found.table, "about step")
                yield self._finding_of_sums(run[Run], found, told, thresholds)

    def _finding_of_sums(
        self, run: Run, found: SlowSpans, told: _Told, thresholds: Thresholds
    ) -> Finding:
        if found.bytes_changed(thresholds.work_share):
            return self._other_work(told, ["nbytes"])
        cause, part = found.cause(thresholds.part_share)
        return self._slower(told, cause, found.ranks, _suspects(run, part), thresholds)

    def _finding(
        self, run: Run, columns: StepColumns, told: _Told, kind: Kind, thresholds: Thresholds
    ) -> Finding:
        level, part = told.level, kind.part
        if kind.work:
            return self._other_work(told, kind.work)
        if level.more_ns < 0:
            return self._faster(told)
        cause = _cause(columns, kind)
        if part == "exposed_ns" and (
            turns := columns.ranks_in_turn(level.is_usual, level.is_slow, level.more_ns / 2)
        ):
            cause, part = f"{SAME_WORK} {few_in_turn(turns)}", ""
        found = self._slower(told, cause, kind.ranks, _suspects(run, part), thresholds)
        if part in WORKING and not kind.ranks:
            cause += OF_ALL
            return msgspec.structs.replace(found, cause=cause, severity=Severity.LOW)
        if kind.ranks:
            own_ns = columns.own_growth(kind.ranks, level.is_usual, level.is_slow)
            return _explained(found, own_ns / level.more_ns)
        if part != "exposed_ns":
            return found
        more_ns = columns.growth(level.is_usual, level.is_slow)[part]
        explains_ms = more_ns * float(level.is_slow.mean()) / 1e6
        return msgspec.structs.replace(found, explains_ms=explains_ms, restates=LATE)

    def _faster(self, told: _Told) -> Finding:
        is_start = 2 * told.level.is_usual.mean() <= 1
        return self.meta.finding(
            Status.INFO,
            told.summary,
            title="Steps become faster at one moment",
            cause="The slow start lasts longer than the excluded warm-up: compilation, caches, "
            "or another program that ended."
            if is_start
            else "What slowed most of the run ended: another program on the host, or work that the "
            "program no longer does.",
            problem=f"Steps take {percent(-told.level.share)} less {told.since}",
            steps=told.firsts[:1],
            evidence=(told.table,),
            confidence="medium",
        )

    def _other_work(self, told: _Told, work: Iterable[str]) -> Finding:
        kinds, at = ", ".join(_WORK[name] for name in work), told.firsts[0]
        return self.meta.finding(
            Status.INFO,
            f"{told.summary} Its work also changed: {kinds}.",
            title="The work per step changes during the run",
            cause=f"The program's work changes at step {at:,}.",
            problem=f"The work per step changes at step {at:,}",
            steps=(at,),
            evidence=(told.table,),
            confidence="high",
        )

    def _slower(
        self,
        told: _Told,
        cause: str,
        ranks: tuple[int, ...],
        suspects: str,
        thresholds: Thresholds,
    ) -> Finding:
        share, firsts = told.level.share, told.firsts
        at = f"step{'s' * (len(firsts) > 1)} {_joined([f'{first:,}' for first in firsts])}"
        when, where = told.since, at
        if len(firsts) > _IN_A_LINE:
            when = f"in {len(firsts)} stretches from step {firsts[0]:,} on"
            where = "the start of each"
        on = f" on {named(ranks)}" if ranks else ""
        return self.meta.finding(
            Status.FAIL,
            told.summary,
            title="" if told.is_to_the_end else _FOR_A_WHILE,
            severity=Severity.HIGH if share >= thresholds.severe_share else Severity.MEDIUM,
            cause=cause,
            action=f"Check what happened at {at}{on}: {suspects}.",
            problem=f"Steps take {percent(share)} longer {when}",
            fix=f"Check what happened at {where}{on}",
            ranks=ranks,
            steps=firsts,
            evidence=(told.table,),
            restates=LATE if ranks else "",
            confidence="medium",
        )


def _joined(names: Sequence[str]) -> str:
    *before, last = names
    return some(names) if len(names) > 3 else " and ".join(filter(None, (", ".join(before), last)))


def _explained(found: Finding, share: float) -> Finding:
    """Say how much of the change ranks explain that got slower, if it is not most of it."""
    if share >= _MOST:
        return found
    who = named(found.ranks)
    return msgspec.structs.replace(
        found, summary=f"{found.summary} The own time of {who} explains {percent(share)} of that."
    )


def _cause(columns: StepColumns, kind: Kind) -> str:
    """Say what got longer: on which ranks, if not on all, else in which part of the step."""
    if ranks := kind.ranks:
        is_known = not columns.left_out
        others = "the others wait" if is_known else "whether others did is unknown"
        who = f"Only {named(ranks)}" if is_known else capitalised(named(ranks))
        return f"{SAME_WORK} {who} got slower; {others}."
    slower = f"{PARTS[kind.part]}, on {columns.ranks}" if kind.part else "unknown"
    return f"{SAME_WORK} The slower part is {slower}."


def _suspects(run: Run, part: str) -> str:
    if part != "exposed_ns":
        return _OF_HOST
    return _OF_CPUS if run.is_cpu and run.is_one_host else _OF_NETWORK


def _table(columns: StepColumns, level: Level, ends: Ends) -> Table:
    """List the parts of slow and of usual steps; of one change, of steps before and after it."""
    labels, caption = ("others", "slow"), "Slow steps and all others, mean over ranks"
    (at, last), *more = ends
    if last is None and not more:
        labels, caption = ("before", "after"), f"Before step {at} and from it on, mean over ranks"
    return Table(
        columns=(Column("median of a step"), *(Column(label, "ns") for label in labels)),
        rows=tuple(
            (
                name,
                *(round(float(np.median(c[is_one]))) for is_one in (level.is_usual, level.is_slow)),
            )
            for name, c in part_columns(columns).items()
        ),
        caption=caption,
    )
