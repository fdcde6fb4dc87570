"""Steps as columns, to find what changes within a run and in which part of which rank."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.run.series import Floats
from dsprof.analysis.step_rows import RankSteps
from dsprof.findings.wording import named
from dsprof.trace.columns import BoolArray, IntArray

PARTS = ("compute_ns", "exposed_ns", "copies_ns", "idle_ns", "other_ns")
_WORK = ("micro_steps", "calls", "nbytes")
_AGREEING = 2 / 3
_MOVED = 0.5
"""With steps of several kinds, as of two engines, one more of a kind moves the median, too."""


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Steps in columns, mean over the same ranks; a part not measurable in each step is absent.

    Without computation, what is not exposed communication may be in any phase: it is `rest_ns`.
    `own_ns` yields the time of each rank without waits, -1 in steps that do not show it: few rules
    ask for it, and all ranks together take much memory.
    """

    number: npt.NDArray[np.int64]
    total_ns: Floats
    parts: dict[str, Floats]
    work: dict[str, Floats]
    own_ns: Callable[[], Iterable[tuple[int, Floats]]]
    forwards: Floats | None  # None where a step does not show them
    compared: tuple[int, ...] = ()
    left_out: tuple[int, ...] = ()  # ranks that did not record all of these steps, or nothing

    @property
    def ranks(self) -> str:
        """The ranks compared, in a sentence."""
        if len(self.left_out) > len(self.compared):
            return named(self.compared)
        but = f" but {named(self.left_out)}" if self.left_out else ""
        return f"all ranks{but}"

    def growth(self, one: BoolArray, other: BoolArray) -> dict[str, float]:
        """Return by how much the median of each part is more in steps `other` than in `one`."""
        return {name: _more(column, one, other) for name, column in self.parts.items()}

    def own_growth(self, ranks: Collection[int], one: BoolArray, other: BoolArray) -> float:
        """Return by how much the own time of the one of `ranks` grows that grows most."""
        own = (column for rank, column in self.own_ns() if rank in ranks)
        known = ((column, column >= 0) for column in own)
        return max(_more(column, one & seen, other & seen) for column, seen in known)

    def work_changed(self, one: BoolArray, other: BoolArray, share: float) -> list[str]:
        """Return which kinds of work differ by more than `share`, in at least half of the steps."""
        changed = []
        for name, column in self.work.items():
            before, after = float(np.median(column[one])), float(np.median(column[other]))
            is_more = column > (before + after) / 2
            moved = abs(is_more[one].mean() - is_more[other].mean())
            if abs(after - before) > share * max(before, after) and moved >= _MOVED:
                changed.append(name)
        return changed

    def ranks_behind(self, one: BoolArray, other: BoolArray, least_ns: float) -> tuple[int, ...]:
        """Return the ranks whose own time grows by `least_ns` in most steps; none if all do."""
        return self.ranks_behind_each(one, [(other, least_ns)])[0]

    def ranks_behind_each(
        self, one: BoolArray, others: Sequence[tuple[BoolArray, float]]
    ) -> list[tuple[int, ...]]:
        """Return them for several `other` steps, each with its `least_ns`; ranks are read once."""
        found: list[list[int]] = [[] for _ in others]
        count = 0
        for rank, column in self.own_ns():
            count += 1
            is_known = column >= 0
            before = column[one & is_known]
            usual_ns = float(np.median(before)) if len(before) else np.inf
            for (other, least_ns), ranks in zip(others, found, strict=True):
                after = column[other & is_known]
                is_long = after - usual_ns >= least_ns
                if len(after) and is_long.mean() >= _AGREEING:
                    ranks.append(rank)
        return [tuple(ranks) if len(ranks) < count else () for ranks in found]

    def ranks_in_turn(self, one: BoolArray, other: BoolArray, least_ns: float) -> tuple[int, ...]:
        """Return which ranks work longer by `least_ns`, if few do in most of the steps `other`.

        What a rank does at the end of its step, the others wait for in the next one.
        """
        found, count = [], 0
        late = np.zeros(len(self.number), np.int64)
        for rank, column in self.own_ns():
            count += 1
            usual = one & (column >= 0)
            if usual.any():
                is_long = (column >= 0) & (column - np.median(column[usual]) >= least_ns)
                is_late = other & (is_long | np.append([False], is_long[:-1]))
                late += is_late
                found += [rank] * bool(is_late.any())
        is_few = (late > 0) & (2 * late < count)
        return tuple(found) if is_few[other].mean() >= _AGREEING else ()


def step_columns(whole: Steps, numbers: Sequence[int], missing: Iterable[int]) -> StepColumns:
    """Return these steps as columns; they are of those that the same ranks recorded.

    What ranks that are `missing` did is unknown.
    """
    steps = whole.throughout
    rows = [steps.parts[number] for number in numbers]
    parts = {}
    for name in PARTS:
        values = [getattr(row, name) for row in rows]
        if values and all(value is not None for value in values):
            parts[name] = np.array(values, np.float64)
    if "compute_ns" not in parts:
        rest = parts.pop("other_ns", None)
        parts |= {"rest_ns": rest} if rest is not None and "exposed_ns" in parts else {}
    work = {name: np.array([getattr(row, name) for row in rows], np.float64) for name in _WORK}
    number = np.array(numbers, np.int64)
    total = np.array([row.total_ns for row in rows], np.float64)
    passes = [row.forwards for row in rows]
    forwards = None if None in passes else np.array(passes, np.float64)
    left_out = tuple(sorted({*whole.ranks, *missing} - {*steps.ranks}))
    own_ns = partial(_own_ns, steps.ranks, number)
    return StepColumns(number, total, parts, work, own_ns, forwards, (*steps.ranks,), left_out)


def _own_ns(ranks: Mapping[int, RankSteps], wanted: IntArray) -> Iterator[tuple[int, Floats]]:
    for rank, row in ranks.items():
        if row.exposed_ns is None or not len(wanted):
            continue
        column = np.full(len(wanted), -1.0)
        place = np.searchsorted(wanted, row.number)
        inside = place < len(wanted)
        inside[inside] = wanted[place[inside]] == row.number[inside]
        if row.on_device:
            inside &= ~row.counted
        column[place[inside]] = (row.total_ns - row.exposed_ns)[inside]
        yield rank, column


def _more(column: Floats, one: BoolArray, other: BoolArray) -> float:
    return float(np.median(column[other]) - np.median(column[one]))
