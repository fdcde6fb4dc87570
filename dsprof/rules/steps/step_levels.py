"""Levels of the times of steps: where the pace changes at once, or for a while, and on whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from dsprof.analysis.aggregates.history import Span
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.series import (
    Change,
    Floats,
    Spells,
    change_of,
    rises_steadily,
    within,
)
from dsprof.analysis.run.step_columns import StepColumns
from dsprof.rules.steps.slow_spans import SlowSpans
from dsprof.rules.steps.step_parts import growing_part
from dsprof.trace.columns import BoolArray

_MOST_KINDS = 3
"""Stretches of more kinds are one finding: as many as there are would hide other problems."""

Ends = list[tuple[int, int | None]]
"""First and last steps of stretches; None: they last to the end."""


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


class Kind(NamedTuple):
    """What is known of the cause of slower steps."""

    work: tuple[str, ...]  # that changed
    ranks: tuple[int, ...]  # that got slower; (): all, or unknown
    part: str  # of the step; "" if ranks are named, or unknown


class Level(NamedTuple):
    """Stretches of slower steps with one cause, and the usual steps beside all stretches."""

    change: Change
    spells: Sequence[slice]
    is_usual: BoolArray
    is_slow: BoolArray

    @property
    def more_ns(self) -> float:
        """How much longer its steps take."""
        return self.change.after - self.change.before

    @property
    def share(self) -> float:
        """How much longer its steps take, as a share of the usual ones."""
        return self.more_ns / self.change.before

    def ends(self, numbers: Sequence[int]) -> Ends:
        """Return the ends of its stretches, given the step of each place."""
        return [
            (numbers[one.start], numbers[one.stop - 1] if one.stop < len(numbers) else None)
            for one in self.spells
        ]

    def ends_in(self, columns: StepColumns, steps: Steps) -> Ends:
        """Return the ends of its stretches, also where one begins between two of the columns."""
        ends = zip(self.spells, self.ends(columns.number.tolist()), strict=True)
        return [(_first(steps, columns, one.start, self.change), last) for one, (_, last) in ends]


def _first(steps: Steps, columns: StepColumns, at: int, change: Change) -> int:
    """Return the first step of the new level, also if it is between two of the columns."""
    last, first = columns.number[at - 1 : at + 1].tolist()
    for number in [number for number in steps.numbers if last < number < first][::-1]:
        time = steps.parts[number].total_ns
        if abs(time - change.after) > abs(time - change.before):
            break
        first = number
    return int(first)


def levels_of(
    times: Floats,
    spells: Spells,
    kinds: Callable[[BoolArray, Sequence[BoolArray]], Sequence[Hashable]],
    thresholds: Thresholds,
) -> list[Level]:
    """Return a change to the slower stretches of each kind; without any, the one to the end."""
    count, place = len(times), np.arange(len(times))
    slow, is_usual = spells
    alike = defaultdict(list)
    each = [within([spell], count) for spell in slow]
    for spell, kind in zip(slow, kinds(is_usual, each) if each else (), strict=True):
        alike[kind].append(spell)
    levels = [
        Level(change, mine, is_usual, within(mine, count))
        for mine in (alike.values() if len(alike) <= _MOST_KINDS else [slow])
        if _is_level(change := Change.to_spells(times, mine, is_usual), count, thresholds)
        and not (mine[-1].stop == count and rises_steadily(times, change))
    ]
    one = None if levels else change_of(times)
    if one and _is_one_change(times, one, thresholds):
        levels = [Level(one, [slice(one.at, count)], place < one.at, place >= one.at)]
    return levels


def is_unclear(times: Floats, change: Change, thresholds: Thresholds) -> bool:
    """Say whether the level rises once, by more than the scatter, but not by enough of it."""
    return change.after > change.before and _is_one_change(
        times, change, replace(thresholds, sigmas=1.0)
    )


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


def kinds_of(
    columns: StepColumns, thresholds: Thresholds, is_usual: BoolArray, slow: Sequence[BoolArray]
) -> list[Kind]:
    """Return what is known of the cause of each of some slow stretches, by details of steps."""
    usual_ns = float(np.median(columns.total_ns[is_usual]))
    more_ns = [float(np.median(columns.total_ns[is_slow])) - usual_ns for is_slow in slow]
    halves = [(is_slow, more / 2) for is_slow, more in zip(slow, more_ns, strict=True)]
    found = []
    for is_slow, more, ranks in zip(
        slow, more_ns, columns.ranks_behind_each(is_usual, halves), strict=True
    ):
        work = tuple(columns.work_changed(is_usual, is_slow, thresholds.work_share))
        growth = {} if ranks else columns.growth(is_usual, is_slow)
        found.append(Kind(work, ranks, growing_part(growth, more, thresholds.part_share)))
    return found


def kinds_of_sums(
    spans: Mapping[int, Span],
    hosts: Mapping[int, str],
    thresholds: Thresholds,
    is_usual: BoolArray,
    slow: Sequence[BoolArray],
) -> list[Kind]:
    """Return the same by sums over spans of time."""
    found = []
    for is_slow in slow:
        those = SlowSpans.of(spans, is_slow, is_usual, hosts)
        work = ("nbytes",) * those.bytes_changed(thresholds.work_share)
        ranks = tuple(sorted((*those.ranks, *those.beside)))
        found.append(Kind(work, ranks, those.cause(thresholds.part_share)[1]))
    return found
