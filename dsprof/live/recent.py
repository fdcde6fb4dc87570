"""The recent steps of all ranks, as the windows of their traces told them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.alignment.clocks import Alignment, align, clock_samples, shared_clock
from dsprof.analysis.rank.intervals import Array
from dsprof.analysis.rank.steps import warmup_steps
from dsprof.analysis.run.lateness import Lateness, alike, lateness
from dsprof.analysis.run.votes import CHANCE, LEAST_S, STEP_SHARE, Votes, vote
from dsprof.analysis.step_rows import RankSteps
from dsprof.analysis.summarise import summarise_traces
from dsprof.trace.rank_trace import RankTrace

_CELLS = 1 << 16
"""Kept of ranks x steps: 256 steps of 256 ranks."""
_MOST_STEPS, _LEAST_STEPS = 240, 16
_THROUGHOUT = 0.9
"""A rank is compared over time if it has this share of the recent steps."""


@dataclass(slots=True)
class StepOfRank:
    """One step of one rank; None: not measurable here."""

    total_ns: int
    exposed_ns: int | None
    compute_ns: int | None
    copies_ns: int | None
    idle_ns: int | None
    waited_ns: int = -1  # for the last arrival; -1: nothing of it was matched


@dataclass
class RecentSteps:
    """Steps by number, each by rank; the oldest go when there are too many."""

    steps: dict[int, dict[int, StepOfRank]] = field(default_factory=dict)
    first: int | None = None  # of the run
    lengths_ns: list[int] = field(default_factory=list)  # of those measured, mean over ranks
    _doubts_ns: dict[tuple[int, ...], int] = field(default_factory=dict)  # of ranks that are alike

    def add(self, windows: Sequence[RankTrace]) -> list[tuple[int, int, StepOfRank]]:
        """Take windows of ranks; return which rank and step is known for good by now, and how long.

        The last step of each window may still change with the next one.
        """
        if not windows:
            return []
        summary = summarise_traces(windows, _alignment(windows), (Steps, Arrivals))
        settled = []
        for rank, rows in sorted(summary[Steps].ranks.items()):
            for step, found in _rows(rows):
                self.steps.setdefault(step, {})[rank] = found
                settled.append((rank, step, found))
        self.first = min(self.steps) if self.first is None else self.first
        for groups in alike(summary[Arrivals]):
            self._take_waits(lateness(groups))
        self._forget()
        self.lengths_ns = [
            round(fmean(one.total_ns for one in self.steps[number].values()))
            for number in self.measured
        ]
        return settled

    def _take_waits(self, late: Lateness) -> None:
        mine = set(late.ranks)
        if any(mine < {*ranks} for ranks in self._doubts_ns):  # another rank may be the last
            return
        known = {ranks: doubt for ranks, doubt in self._doubts_ns.items() if not mine > {*ranks}}
        self._doubts_ns = known | {late.ranks: late.doubt_ns}
        for place, rank in enumerate(late.ranks):
            for column, step in enumerate(late.steps.tolist()):
                if one := self.steps.get(step, {}).get(rank):
                    one.waited_ns = int(late.waited_ns[place, column])

    @property
    def measured(self) -> list[int]:
        """The steps that figures take: those after the warm-up of the run, ascending."""
        numbers = sorted(self.steps)
        if not numbers or numbers[0] != self.first:
            return numbers
        return numbers[warmup_steps(len(numbers)) :]

    def _forget(self) -> None:
        ranks = max(map(len, self.steps.values()), default=1)
        kept = min(max(_CELLS // ranks, _LEAST_STEPS), _MOST_STEPS)
        for number in sorted(self.steps)[:-kept]:
            del self.steps[number]

    def of_rank(self, rank: int) -> list[StepOfRank]:
        """Return the recent steps of a rank, the oldest first."""
        return [self.steps[n][rank] for n in self.measured if rank in self.steps[n]]

    def trend(self) -> float | None:
        """Return how much longer the newer half of the steps is than the older half, as a share.

        Of the ranks with nearly all of them: without some, the mean over ranks is another.
        """
        steps = [self.steps[number] for number in self.measured]
        counts = Counter(rank for step in steps for rank in step)
        same = {rank for rank, count in counts.items() if count >= _THROUGHOUT * len(steps)}
        if 2 * len(same) < len(counts):
            return None
        lengths = [
            fmean(step[rank].total_ns for rank in same) for step in steps if same <= step.keys()
        ]
        half = len(lengths) // 2
        if half < _LEAST_STEPS // 2:
            return None
        older_ns = median(lengths[:half])
        return median(lengths[half:]) / older_ns - 1 if older_ns else None

    def votes(self) -> Votes | None:
        """Let the steps vote for a straggler; of sets of ranks that are alike, in the worst."""
        step_ns, numbers = self._mean_ns(), self.measured
        polls = []
        for ranks, doubt_ns in self._doubts_ns.items():
            rows = [[self._waited_ns(n, rank) for n in numbers] for rank in ranks]
            waits = _Waits(ranks, np.array(rows, np.int64), doubt_ns)
            polls.append(vote(waits, STEP_SHARE * step_ns / 2))
        return max((one for one in polls if one.steps), key=lambda one: one.cost_ns, default=None)

    def straggler(self, votes: Votes) -> int | None:
        """Return the rank that delays the others, as in a report; None where it is not sure."""
        step_ns = self._mean_ns()
        is_brief = step_ns * len(self.measured) < LEAST_S * 1e9
        if is_brief or votes.chance > CHANCE or not votes.stragglers(STEP_SHARE * step_ns):
            return None
        return votes.ranks[votes.leader]

    def _mean_ns(self) -> float:
        return fmean(self.lengths_ns or [0])

    def _waited_ns(self, step: int, rank: int) -> int:
        one = self.steps[step].get(rank)
        return -1 if one is None else one.waited_ns


class _Waits(NamedTuple):
    ranks: tuple[int, ...]
    waited_ns: Array
    doubt_ns: int


def _rows(rows: RankSteps) -> Iterable[tuple[int, StepOfRank]]:
    for place, (number, total_ns) in enumerate(
        zip(rows.number.tolist(), rows.total_ns.tolist(), strict=True)
    ):
        yield (
            number,
            StepOfRank(
                total_ns,
                exposed_ns=_at(rows.exposed_ns, place),
                compute_ns=_at(rows.compute_ns, place),
                copies_ns=_at(rows.copies_ns, place),
                idle_ns=_at(rows.idle_ns, place),
            ),
        )


def _at(column: Array | None, place: int) -> int | None:
    return None if column is None else int(column[place])


def _alignment(windows: Sequence[RankTrace]) -> Alignment:
    headers = [window.header for window in windows]
    return shared_clock(headers) or align(map(clock_samples, windows))
