"""Steps in detail: what some ranks did in the worst, median and first step, and in a sample.

The choice of the first three needs the times of all ranks, so it is not known when a rank is read.
In synchronous training ranks mostly agree on it: each draws its own few candidates. What the report
shows beyond them, `missing` names: those ranks are read again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, cast

import numpy as np

from dsprof.analysis.per_rank import PerRank
from dsprof.analysis.rank.bars import StepDetail
from dsprof.analysis.rank.drawing import DUMP, WHOLE, draw, draw_without_steps
from dsprof.analysis.rank.record_columns import step_columns
from dsprof.analysis.rank.sampling import kept_steps, longest_steps
from dsprof.analysis.rank.steps import detailed_steps
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.packed import Packed
from dsprof.trace.rank_trace import RankTrace

CANDIDATES = 3  # of each kind, a rank
SAMPLE = 24  # steps spread over the run, of the ranks that a page shows
RANKS = 16  # more would not fit a page
_AS_LONG = (0.99, 1.01)  # a step counts as equally long between these shares of another


class Drawn(Mapping[int, Mapping[int, StepDetail]]):
    """Details by step and rank. They are large: those of a rank are packed until a step is read.

    A step is empty if no rank that recorded it was kept.
    """

    def __init__(
        self, ranks: Mapping[int, Packed[dict[int, StepDetail]]], numbers: frozenset[int]
    ) -> None:
        self._ranks, self._numbers = ranks, numbers

    @classmethod
    def of(cls, rank: int, details: dict[int, StepDetail]) -> Drawn:
        """Return the details of one rank."""
        return cls({rank: Packed(details)}, frozenset(details))

    def beside(self, other: Drawn, ranks: Collection[int]) -> Drawn:
        """Join the details of two disjoint sets of ranks, and keep those of `ranks`."""
        both = {**self._ranks, **other._ranks}
        kept = {rank: both[rank] for rank in both.keys() & {*ranks}}
        return Drawn(kept, self._numbers | other._numbers)

    def __reduce__(self) -> tuple[Any, ...]:
        return Drawn, (self._ranks, self._numbers)

    def __getitem__(self, number: int) -> Mapping[int, StepDetail]:
        return self._steps[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._steps)

    def __len__(self) -> int:
        return len(self._numbers)

    @cached_property
    def _steps(self) -> dict[int, dict[int, StepDetail]]:
        steps: dict[int, dict[int, StepDetail]] = {number: {} for number in sorted(self._numbers)}
        for rank in sorted(self._ranks):
            for number, detail in self._ranks[rank].unpacked().items():
                steps[number][rank] = detail
        return steps


@dataclass(frozen=True, slots=True)
class Timelines(Aggregate):
    """How long the measured steps took, and the detail of some, by step and rank."""

    durations: dict[int, tuple[int, int]]  # step -> ns summed over ranks, and how many ranks
    steps: Mapping[int, Mapping[int, StepDetail]]
    ranks: tuple[int, ...]  # those that are drawn, ascending
    clocks: PerRank[RankClock]  # of all ranks, to draw more of them

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Timelines:
        clocks = PerRank({trace.rank: clock})
        if not trace.steps:
            drawn = draw_without_steps(trace, clock)
            durations = {n: (detail.end_ns - detail.start_ns, 1) for n, detail in drawn.items()}
            return cls(durations, Drawn.of(trace.rank, drawn), (trace.rank,), clocks)
        kept = np.union1d(kept_steps(trace), longest_steps(trace))
        numbers = np.intersect1d(detailed_steps(trace), kept)
        steps = step_columns(trace)
        times = (steps.end_ns - steps.start_ns)[steps.rows_of(numbers)]
        durations = {n: (ns, 1) for n, ns in zip(numbers.tolist(), times.tolist(), strict=True)}
        order = _slowest_first(durations)
        middle = max(0, (len(order) - CANDIDATES) // 2)
        chosen = {*order[:CANDIDATES], *order[middle : middle + CANDIDATES], *sorted(order)[:1]}
        if trace.rank < RANKS:
            chosen.update(spread(sorted(order), SAMPLE))
        drawn = draw(trace, clock, chosen)
        return cls(durations, Drawn.of(trace.rank, drawn), (trace.rank,), clocks)

    def merge(self, other: Timelines) -> Timelines:
        """Add up the times of each step, and put the lowest ranks side by side."""
        durations = dict(self.durations)
        for number, (spent, count) in other.durations.items():
            before = durations.get(number, (0, 0))
            durations[number] = (before[0] + spent, before[1] + count)
        ranks = tuple(sorted({*self.ranks, *other.ranks})[:RANKS])
        steps = cast(Drawn, self.steps).beside(cast(Drawn, other.steps), ranks)
        return Timelines(durations, steps, ranks, self.clocks | other.clocks)

    def with_details(
        self, details: Mapping[int, Mapping[int, StepDetail]], ranks: tuple[int, ...]
    ) -> Timelines:
        """Return the timelines of `ranks` with further details."""
        steps: dict[int, dict[int, StepDetail]] = {}
        for number in self.steps.keys() | details.keys():
            both = {**self.steps.get(number, {}), **details.get(number, {})}
            steps[number] = {rank: both[rank] for rank in sorted(both) if rank in ranks}
        return replace(self, steps=steps, ranks=ranks)

    def choose(self) -> list[tuple[str, int]]:
        """Return ("worst", step), ("median", step) and ("first", step), by the mean over ranks.

        A step is named once. Steps that at most half of the ranks recorded in detail are left
        aside: a rank that ends early must not hide the worst step of the others.
        """
        durations = {n: d for n, d in self.durations.items() if n >= 0}
        if not durations:
            wholes = {WHOLE: "recording", DUMP: "dump"}
            return [(why, n) for n, why in wholes.items() if n in self.durations][:1]
        most = max(count for _, count in durations.values())
        order = _slowest_first({n: d for n, d in durations.items() if 2 * d[1] > most})
        places = {"worst": order[0], "median": self._median(order), "first": min(order)}
        chosen: dict[int, str] = {}
        for name, number in places.items():
            chosen.setdefault(number, name)
        return [(name, number) for number, name in chosen.items()]

    def _median(self, order: Sequence[int]) -> int:
        """Return the median step, or one as long that more ranks have drawn.

        The median step of all ranks is rarely a candidate of each rank: the ranks on the page
        would be read again for it.
        """
        middle = len(order) // 2
        length = {n: spent / count for n, (spent, count) in self.durations.items()}
        least, most = (length[order[middle]] * share for share in _AS_LONG)
        near = {n: abs(at - middle) for at, n in enumerate(order) if least <= length[n] <= most}
        return min(near, key=lambda n: (-len(self.steps.get(n, ())), near[n]))

    def missing(self, numbers: Collection[int], ranks: Collection[int]) -> dict[int, set[int]]:
        """Return which of these steps each of these ranks has not drawn."""
        lacking: dict[int, set[int]] = defaultdict(set)
        for rank, number in product(ranks, numbers):
            if rank not in self.steps.get(number, {}):
                lacking[rank].add(number)
        return lacking


def spread(numbers: Sequence[int], at_most: int) -> list[int]:
    """Return some of the numbers, at equal distances, the first and the last among them."""
    places = np.linspace(0, len(numbers) - 1, min(at_most, len(numbers))).round()
    return [numbers[int(place)] for place in places]


def _slowest_first(durations: dict[int, tuple[int, int]]) -> list[int]:
    """Return the steps by their mean time over ranks."""
    return sorted(durations, key=lambda n: (-durations[n][0] / durations[n][1], n))
