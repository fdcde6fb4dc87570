"""Which rank is late, by what the ranks waited in each step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from dsprof.analysis.alignment.matching import CELLS
from dsprof.analysis.rank.intervals import Array
from dsprof.analysis.run.lateness import PAIRED_RANKS, Lateness
from dsprof.analysis.run.outliers import alike_in_a_row, chance_of, low_outliers

STEP_SHARE = 0.05
"""A straggler delays the others by at least this share of a step."""

CHANCE = 0.01
"""The votes for a straggler must be less likely than this if all ranks are alike."""

LEAST_S = 1.0
"""Another program may occupy a processor this long: shorter records name no straggler."""

UNEVEN = 1.5
"""Above it, mean delay by that of the median step, "every step" would not be true."""

_WIDE = 0.5
"""A gap of this share of the range of all is wider than the others are apart."""
_FEW = 11
"""Dixon's test asks for a wider gap only among up to this many ranks."""


class Waits(Protocol):
    """What steps vote by; as in `Lateness`."""

    @property
    def ranks(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def waited_ns(self) -> Array: ...  # noqa: D102
    @property
    def doubt_ns(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Votes:
    """Each step in which one rank waited far less than the others is a vote for that rank.

    Either an outlier in its step gets the vote, or whoever waited less by more than the others are
    apart. A single such step proves little: steps without a vote then count against the rank.

    Costs are means over all steps, of how much longer the others waited than the rank: the median
    of them, and the least. `usual_ns` is that of the median step, `voted_ns` the mean over the
    steps with a vote for the rank.
    """

    ranks: tuple[int, ...]
    votes: Array  # of each rank
    cast: int  # steps in which some rank got a vote
    of: int  # steps that the votes are judged by: those with a vote, or all
    steps: int
    median_ns: Array
    least_ns: Array
    usual_ns: Array
    voted_ns: Array
    alike: float = 1.0  # steps in a row, of which one vote is independent

    @property
    def leader(self) -> int:
        """Place of the rank with the most votes, of several the one that costs most."""
        return int(np.lexsort((-self.median_ns, -self.votes))[0])

    @property
    def cost_ns(self) -> int:
        """How much longer than the leader the others waited."""
        return int(self.median_ns[self.leader])

    @property
    def is_uneven(self) -> bool:
        """Whether a few long waits are most of the mean."""
        return self.cost_ns > UNEVEN * int(self.usual_ns[self.leader])

    @property
    def is_of_most(self) -> bool:
        """Whether most steps vote for the leader; else the median step need not be delayed."""
        return 2 * int(self.votes[self.leader]) > self.steps

    @property
    def is_of_all(self) -> bool:
        """Whether so many steps vote for the leader that the others may be chance."""
        return 10 * int(self.votes[self.leader]) >= 9 * self.steps

    @property
    def typical_ns(self) -> int:
        """The same, in the median step of an uneven rank that delays most steps."""
        is_usual = self.is_uneven and self.is_of_most
        return int(self.usual_ns[self.leader]) if is_usual else self.cost_ns

    @property
    def late(self) -> tuple[int, ...]:
        """Ranks with at least two thirds of the votes: several if a large group has several."""
        most = 3 * self.votes >= 2 * max(self.cast, 1)
        return tuple(rank for rank, is_late in zip(self.ranks, most, strict=True) if is_late)

    def stragglers(self, least_ns: float) -> tuple[int, ...]:
        """Return the ranks that are late, if that costs at least so much."""
        return self.late if self.cost_ns >= least_ns else ()

    @property
    def chance(self) -> float:
        """How likely some rank gets so many votes where all are alike."""
        return self.chance_of(int(self.votes.max(initial=0)), self.of)

    def chance_of(self, votes: int, of: int) -> float:
        """Return how likely that is for `votes` in `of` steps."""
        return chance_of(round(votes / self.alike), round(of / self.alike), len(self.ranks))


def vote(late: Waits, least_gap_ns: float) -> Votes:
    """Let the steps vote in which all ranks have matched collectives.

    Of few ranks hardly any step has an outlier, however late a rank is. Wide gaps decide where most
    of them are below the same rank, and chance explains that less.
    """
    is_known = (late.waited_ns >= 0).all(axis=0)
    waited = late.waited_ns if is_known.all() else late.waited_ns[:, is_known]
    count, steps = waited.shape
    votes, voted_ns, wide, wide_ns, least_ns = (np.zeros(count, np.int64) for _ in range(5))
    if not steps:
        return Votes(late.ranks, votes, 0, 0, 0, votes, votes, votes, votes)
    median_ns, cast, wide_cast = np.empty_like(waited), 0, 0
    width = max(CELLS // count, 1)
    for columns in (slice(first, first + width) for first in range(0, steps, width)):
        some = waited[:, columns]
        median, least = (np.maximum(others - some, 0) for others in _of_others(some))
        median_ns[:, columns] = median
        least_ns += least.sum(axis=1)
        # Elsewhere the lowest is not far below the median of the others, which is rounded here.
        for column in np.flatnonzero(median.max(axis=0) + 1 >= least_gap_ns):
            found = low_outliers(some[:, column], least_gap_ns, late.doubt_ns)
            votes += found
            voted_ns += found * median[:, column]
            cast += bool(found.any())
            if not found.any() and count <= _FEW:
                found = low_outliers(some[:, column], least_gap_ns, late.doubt_ns, _WIDE)
            wide += found
            wide_ns += found * median[:, column]
            wide_cast += bool(found.any())
    rows = (median_ns[at : at + PAIRED_RANKS] for at in range(0, count, PAIRED_RANKS))
    usual_ns = [np.median(some, axis=1) for some in rows]
    by_outliers = Votes(
        late.ranks,
        votes,
        cast,
        cast,
        steps,
        median_ns.sum(axis=1) // steps,
        least_ns // steps,
        np.concatenate(usual_ns).astype(np.int64),
        voted_ns // np.maximum(votes, 1),
        _alike(median_ns, least_gap_ns),
    )
    by_gaps = replace(
        by_outliers,
        votes=wide,
        cast=wide_cast,
        of=steps,
        voted_ns=wide_ns // np.maximum(wide, 1),
    )
    return by_gaps if by_gaps.late and by_gaps.chance < by_outliers.chance else by_outliers


def _alike(less_ns: Array, least_gap_ns: float) -> float:
    """Return how many steps in a row have the same later one of two ranks; 1 for more ranks.

    Of two ranks one is later in each step, and a busy machine is busy for several steps.
    """
    if len(less_ns) != 2:
        return 1.0
    is_late = less_ns >= max(least_gap_ns, 1)
    return alike_in_a_row(is_late[0, is_late.any(axis=0)])


class Together(NamedTuple):
    """Ranks that come late together; `cost_ns` is how much longer the others wait than they do."""

    ranks: tuple[int, ...]
    steps: int  # in which only they waited far less than the others
    uneven: int  # in which some ranks did
    of: int
    cost_ns: int  # mean over all steps
    stretch: tuple[int, int] | None = None  # first and last step, if they are late in most between

    @property
    def is_of_all(self) -> bool:
        """Whether they are late in so many steps that the others may be chance."""
        return 10 * self.steps >= 9 * self.of


def together(late: Lateness, least_gap_ns: float) -> Together | None:
    """Return the two or more ranks, at most half, that waited far less in most uneven steps.

    Waits are split at their largest gap: two late ranks hide each other from a test for one.
    """
    columns = np.flatnonzero((late.waited_ns >= 0).all(axis=0))
    found: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    uneven = 0
    for column in columns.tolist():
        waited = late.waited_ns[:, column]
        order = np.argsort(waited, kind="stable")
        gaps = np.diff(waited[order])
        place = int(np.argmax(gaps)) + 1 if len(gaps) else 0
        is_wide = place and gaps[place - 1] >= max(least_gap_ns, late.doubt_ns)
        uneven += bool(is_wide)
        if is_wide and 2 <= place <= len(order) // 2:
            found[tuple(sorted(order[:place].tolist()))].append(column)
    if not found:
        return None
    places, mine_in = max(found.items(), key=lambda item: len(item[1]))
    steps, between = len(mine_in), np.searchsorted(columns, [mine_in[0], mine_in[-1]])
    if 3 * steps < 2 * uneven:
        return None
    mine = np.isin(np.arange(len(late.ranks)), places)
    waited = late.waited_ns[:, columns]
    cost_ns = int(waited[~mine].mean() - waited[mine].mean())
    ranks = tuple(late.ranks[one] for one in places)
    first, last = late.steps[[mine_in[0], mine_in[-1]]].tolist()
    is_dense = 10 * steps >= 9 * (between[1] - between[0] + 1)
    stretch = (first, last) if is_dense else None
    return Together(ranks, steps, uneven, len(columns), cost_ns, stretch)


def _of_others(values: Array) -> tuple[Array, Array]:
    """Return, for each of at least two values in a column, median and least of all others in it."""
    order = np.argsort(values, axis=0, kind="stable")
    ordered, place = np.take_along_axis(values, order, axis=0), np.argsort(order, axis=0)
    low, high = (
        np.take_along_axis(ordered, middle + (place <= middle), axis=0)
        for middle in ((len(values) - 2) // 2, (len(values) - 1) // 2)  # of one less
    )
    return (low + high) // 2, np.where(place == 0, ordered[1], ordered[0])
