"""The recent steps of all ranks, as the windows of their traces told them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.aggregates.steps import Steps
from dsprof.analysis.alignment.clocks import Alignment, align, clock_samples, shared_clock
from dsprof.analysis.rank.intervals import Array
from dsprof.analysis.rank.steps import warmup_steps
from dsprof.analysis.run.lateness import lateness
from dsprof.analysis.step_rows import RankSteps
from dsprof.analysis.summarise import summarise_traces
from dsprof.trace.rank_trace import RankTrace

_CELLS = 1 << 16
"""Kept of ranks x steps: 256 steps of 256 ranks."""
_MOST_STEPS, _LEAST_STEPS = 240, 16

_LATE_SHARE = 0.05


@dataclass(slots=True)
class StepOfRank:
    """One step of one rank; None: not measurable here."""

    total_ns: int
    exposed_ns: int | None
    compute_ns: int | None
    copies_ns: int | None
    idle_ns: int | None
    caused_ns: int = 0  # wait of the others for this rank


@dataclass
class RecentSteps:
    """Steps by number, each by rank; the oldest go when there are too many."""

    steps: dict[int, dict[int, StepOfRank]] = field(default_factory=dict)
    first: int | None = None  # of the run

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
        late = lateness(summary[Arrivals].matched)
        for place, rank in enumerate(late.ranks):
            for column, step in enumerate(late.steps.tolist()):
                if one := self.steps.get(step, {}).get(rank):
                    one.caused_ns = int(late.caused_ns[place, column])
        self._forget()
        return settled

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

    def lengths_ns(self) -> list[int]:
        """Return the length of each step, mean over ranks, the oldest first."""
        return [round(fmean(one.total_ns for one in self.steps[n].values())) for n in self.measured]

    def trend(self) -> float | None:
        """Return how much longer the newer half of the steps is than the older half, as a share."""
        lengths = self.lengths_ns()
        half = len(lengths) // 2
        if half < _LEAST_STEPS // 2:
            return None
        older_ns = median(lengths[:half])
        return median(lengths[half:]) / older_ns - 1 if older_ns else None

    def straggler(self) -> tuple[int, int] | None:
        """Return the rank that others wait for most in two thirds of the steps, and how long.

        The time is the mean over the recent steps; what is short of a twentieth of a step is none.
        """
        votes: Counter[int] = Counter()
        caused_ns: Counter[int] = Counter()
        for number in self.measured:
            ranks = self.steps[number]
            late = max(ranks, key=lambda rank: ranks[rank].caused_ns)
            votes[late] += 1
            caused_ns[late] += ranks[late].caused_ns
        rank, count = votes.most_common(1)[0] if votes else (0, 0)
        mean_ns = caused_ns[rank] // max(len(self.measured), 1)
        is_often = count >= _LEAST_STEPS // 2 and 3 * count >= 2 * len(self.measured)
        is_long = mean_ns >= _LATE_SHARE * median(self.lengths_ns() or [0])
        return (rank, mean_ns) if is_often and is_long else None


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
