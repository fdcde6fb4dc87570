"""step-time-change: steps become slower at one moment of the run, or for a while."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from dsprof.analysis.aggregates.history import History, Span
from dsprof.analysis.aggregates.run import Run
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.busy_spans import mean_step_ns
from dsprof.analysis.run.delays import delays
from dsprof.analysis.run.series import (
    Change,
    Floats,
    change_of,
    rises_steadily,
    spells_of,
    within,
)
from dsprof.analysis.run.step_columns import StepColumns, step_columns
from dsprof.analysis.summary import RunSummary
from dsprof.findings.finding import Column, Finding, Severity, Status, Table
from dsprof.findings.wording import capitalised, duration, named, percent, some
from dsprof.rules.rule import Rule, RuleMeta
from dsprof.rules.steps.slow_spans import SlowSpans
from dsprof.rules.steps.step_parts import (
    PARTS,
    SAME_WORK,
    few_in_turn,
    growing_part,
    part_columns,
    passed,
    too_few,
)
from dsprof.trace.columns import BoolArray

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


_MOST_KINDS = 3
"""Stretches of more kinds are one finding: as many as there are would hide other problems."""

_FOR_A_WHILE = "Steps are slower for a while"
_IN_A_LINE = 2
"""A headline names at most so many stretches."""

_Ends = list[tuple[int, int | None]]
"""First and last steps of stretches; None: they last to the end."""


class _Kind(NamedTuple):
    """What is known of the cause of slower steps."""

    work: tuple[str, ...]  # that changed
    ranks: tuple[int, ...]  # that got slower; (): all, or unknown
    part: str  # of the step; "" if ranks are named, or unknown


class _Level(NamedTuple):
    """Stretches of slower steps with one cause, and the usual steps beside all stretches."""

    change: Change
    spells: Sequence[slice]
    is_usual: BoolArray
    is_slow: BoolArray

    @property
    def more_ns(self) -> float:
        return self.change.after - self.change.before


class StepTimeChange:
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
            yield passed(self.meta, "Step time does not change", series, thresholds.steps)

    def _in_detail(self, run: RunSummary, thresholds: Thresholds) -> Iterator[Finding]:
        steps = run[Steps]
        for numbers in steps.throughout.series:
            columns = step_columns(steps, numbers)
            spells = [*spells_of(columns.total_ns, thresholds.share, thresholds.chance)]
            if delayed := delays(steps) if spells else None:  # which periodic-slow-step names
                is_delayed = np.isin(columns.number, delayed.steps)
                spells = [spell for spell in spells if 2 * is_delayed[spell].mean() <= 1]
            kinds = partial(_kinds, columns, thresholds)
            levels = _levels(columns.total_ns, spells, kinds, thresholds)
            for level in levels:
                ends = _ends(steps.throughout, columns, level)
                yield self._finding(run[Run], columns, level, ends, thresholds)
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
        hosts = {rank: facts.header.host for rank, facts in run[Run].ranks.items()}
        kinds = partial(_kinds_of_sums, spans, hosts, thresholds)
        slowest = [span.slowest[2] for span in spans.values()]
        for level in _levels(times, spells, kinds, thresholds):
            found = SlowSpans.of(spans, level.is_slow, level.is_usual, hosts)
            ends = [
                (slowest[spell.start], slowest[spell.stop - 1] if spell.stop < len(times) else None)
                for spell in level.spells
            ]
            lost = found.lost_ns >= thresholds.run_share * sum(s.total_ns for s in spans.values())
            if level.more_ns > 0 and lost and not found.are_of_a_rank(history):
                yield self._finding_of_sums(run[Run], found, level, ends, thresholds)

    def _finding_of_sums(
        self, run: Run, found: SlowSpans, level: _Level, ends: _Ends, thresholds: Thresholds
    ) -> Finding:
        since = _since(ends, "about step")
        text = _lengthened(since, level.change)
        if found.bytes_changed(thresholds.work_share):
            return self._other_work(text, ends[0][0], ["nbytes"], found.table)
        cause, part = found.cause(thresholds.part_share)
        what = _suspects(run, part)
        return self._slower(
            text, since, ends, level.change, cause, found.ranks, what, found.table, thresholds
        )

    def _finding(
        self, run: Run, columns: StepColumns, level: _Level, ends: _Ends, thresholds: Thresholds
    ) -> Finding:
        change, at, more_ns = level.change, ends[0][0], level.more_ns
        since = _since(ends, "step")
        text = _lengthened(since, change)
        table = _table(columns, level, at if ends == [(at, None)] else None)
        (kind,) = _kinds(columns, thresholds, level.is_usual, [level.is_slow])
        if kind.work:
            return self._other_work(text, at, kind.work, table)
        if more_ns < 0:
            return self.meta.finding(
                Status.INFO,
                text,
                title="Steps become faster at one moment",
                cause=(
                    "The slow start lasts longer than the excluded warm-up: compilation, caches, "
                    "or another program that ended."
                ),
                problem=f"Steps take {percent(-more_ns / change.before)} less {since}",
                steps=(at,),
                evidence=(table,),
                confidence="medium",
            )
        cause, part = _cause(run, columns, kind), kind.part
        if part == "exposed_ns" and (
            turns := columns.ranks_in_turn(level.is_usual, level.is_slow, more_ns / 2)
        ):
            cause, part = f"{SAME_WORK} {few_in_turn(turns)}", ""
        what = _suspects(run, part)
        found = self._slower(text, since, ends, change, cause, kind.ranks, what, table, thresholds)
        explains_ms = more_ns * float(level.is_slow.mean()) / 1e6
        return msgspec.structs.replace(
            found, explains_ms=explains_ms if part == "exposed_ns" else 0.0
        )

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
        ends: _Ends,
        change: Change,
        cause: str,
        ranks: tuple[int, ...],
        suspects: str,
        table: Table,
        thresholds: Thresholds,
    ) -> Finding:
        share = (change.after - change.before) / change.before
        firsts = tuple(first for first, _ in ends)
        at = f"step{'s' * (len(firsts) > 1)} {_joined([f'{first:,}' for first in firsts])}"
        when, where = since, at
        if len(ends) > _IN_A_LINE:
            when = f"in {len(ends)} stretches from step {firsts[0]:,} on"
            where = "the start of each"
        return self.meta.finding(
            Status.FAIL,
            text,
            title="" if ends == [(firsts[0], None)] else _FOR_A_WHILE,
            severity=Severity.HIGH if share >= thresholds.severe_share else Severity.MEDIUM,
            cause=cause,
            action=f"Check what happened at {at}{_on(ranks)}: {suspects}.",
            problem=f"Steps take {percent(share)} longer {when}",
            fix=f"Check what happened at {where}{_on(ranks)}",
            ranks=ranks,
            steps=firsts,
            evidence=(table,),
            confidence="medium",
        )


def _lengthened(since: str, change: Change) -> str:
    return (
        f"{capitalised(since)} a step takes {duration(change.after)} instead of "
        f"{duration(change.before)} ({percent(change.after / change.before - 1, sign='+')})."
    )


def _since(ends: _Ends, step: str) -> str:
    spells = [f"{first:,} on" if last is None else f"{first:,} to {last:,}" for first, last in ends]
    return f"from {step} {_joined(spells)}"


def _joined(names: Sequence[str]) -> str:
    *before, last = names
    return some(names) if len(names) > 3 else " and ".join(filter(None, (", ".join(before), last)))


def _ends(steps: Steps, columns: StepColumns, level: _Level) -> _Ends:
    numbers = columns.number.tolist()
    return [
        (
            _first(steps, columns, spell.start, level.change),
            numbers[spell.stop - 1] if spell.stop < len(numbers) else None,
        )
        for spell in level.spells
    ]


def _first(steps: Steps, columns: StepColumns, at: int, change: Change) -> int:
    """Return the first step of the new level, also if it is between two of the columns."""
    last, first = columns.number[at - 1 : at + 1].tolist()
    for number in [number for number in steps.numbers if last < number < first][::-1]:
        time = steps.parts[number].total_ns
        if abs(time - change.after) > abs(time - change.before):
            break
        first = number
    return int(first)


def _levels(
    times: Floats,
    spells: Sequence[slice],
    kinds: Callable[[BoolArray, Sequence[BoolArray]], Sequence[Hashable]],
    thresholds: Thresholds,
) -> list[_Level]:
    """Return a change to the slower stretches of each kind; without any, the one to the end."""
    count, place = len(times), np.arange(len(times))
    is_usual = ~within(spells, count)
    alike = defaultdict(list)
    each = [within([spell], count) for spell in spells]
    for spell, kind in zip(spells, kinds(is_usual, each) if each else (), strict=True):
        alike[kind].append(spell)
    levels = [
        _Level(change, mine, is_usual, within(mine, count))
        for mine in (alike.values() if len(alike) <= _MOST_KINDS else [spells])
        if _is_level(change := Change.to_spells(times, mine, is_usual), count, thresholds)
    ]
    one = None if levels else change_of(times)
    if one and _is_one_change(times, one, thresholds):
        levels = [_Level(one, [slice(one.at, count)], place < one.at, place >= one.at)]
    return levels


def _is_one_change(times: Floats, change: Change, thresholds: Thresholds) -> bool:
    return (
        thresholds.least_side <= change.at <= len(times) - thresholds.least_side
        and _is_level(change, len(times), thresholds)
        and not rises_steadily(times, change)
    )


def _is_level(change: Change, count: int, thresholds: Thresholds) -> bool:
    more = abs(change.after - change.before)
    return (
        count >= thresholds.steps
        and change.p <= thresholds.chance
        and more >= thresholds.share * change.before
        and more >= thresholds.sigmas * change.scatter
    )


def _kinds(
    columns: StepColumns, thresholds: Thresholds, is_usual: BoolArray, slow: Sequence[BoolArray]
) -> list[_Kind]:
    usual_ns = float(np.median(columns.total_ns[is_usual]))
    more_ns = [float(np.median(columns.total_ns[is_slow])) - usual_ns for is_slow in slow]
    halves = [(is_slow, more / 2) for is_slow, more in zip(slow, more_ns, strict=True)]
    found = []
    for is_slow, more, ranks in zip(
        slow, more_ns, columns.ranks_behind_each(is_usual, halves), strict=True
    ):
        work = tuple(columns.work_changed(is_usual, is_slow, thresholds.work_share))
        growth = {} if ranks else columns.growth(is_usual, is_slow)
        found.append(_Kind(work, ranks, growing_part(growth, more, thresholds.part_share)))
    return found


def _kinds_of_sums(
    spans: Mapping[int, Span],
    hosts: Mapping[int, str],
    thresholds: Thresholds,
    is_usual: BoolArray,
    slow: Sequence[BoolArray],
) -> list[_Kind]:
    found = []
    for is_slow in slow:
        those = SlowSpans.of(spans, is_slow, is_usual, hosts)
        work = ("nbytes",) * those.bytes_changed(thresholds.work_share)
        ranks = tuple(sorted((*those.ranks, *those.beside)))
        found.append(_Kind(work, ranks, those.cause(thresholds.part_share)[1]))
    return found


def _cause(run: Run, columns: StepColumns, kind: _Kind) -> str:
    """Say what got longer: on which ranks, if not on all, else in which part of the step."""
    if ranks := kind.ranks:
        is_known = not (columns.left_out or run.missing_ranks)
        others = "the others wait" if is_known else "whether others did is unknown"
        who = f"Only {named(ranks)}" if is_known else capitalised(named(ranks))
        return f"{SAME_WORK} {who} got slower; {others}."
    slower = f"{PARTS[kind.part]}, on {columns.ranks}" if kind.part else "unknown"
    return f"{SAME_WORK} The slower part is {slower}."


def _suspects(run: Run, part: str) -> str:
    if part != "exposed_ns":
        return _OF_HOST
    return _OF_CPUS if run.is_cpu and run.is_one_host else _OF_NETWORK


def _on(ranks: tuple[int, ...]) -> str:
    return f" on {named(ranks)}" if ranks else ""


def _table(columns: StepColumns, level: _Level, at: int | None) -> Table:
    """List the parts of steps from `at` on and before; None: of slow and usual ones."""
    labels, caption = ("others", "slow"), "Slow steps and all others, mean over ranks"
    if at is not None:
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


RULE: Rule = StepTimeChange()
