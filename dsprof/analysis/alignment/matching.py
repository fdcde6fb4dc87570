"""The same collective on all its ranks: the n-th of a group on one is the n-th on every other.

Numbers count from where a recording begins. Ranks whose recordings begin at different moments are
recognised by their times, because no rank leaves a synchronising collective before all have entered
it; then the numbers of one are shifted. Collectives that some rank lacks are at the edge of a
recording, and no mismatch. `sample` chooses the same collectives on all ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any

import numpy as np

from dsprof.analysis.rank.intervals import Array
from dsprof.analysis.rank.pace import Pace
from dsprof.analysis.rank.sampling import OneIn, in_sample
from dsprof.trace.columns import BoolArray

_AGREEING = 0.9
"""Share of collectives whose times must fit, for numbers to be taken for matched."""


_MATRICES = (
    *("op", "nbytes", "arrive", "done", "blocked_from", "blocked_until", "isolated"),
    "bound_ns",
)

CELLS = 1 << 16
"""Cells of a matrix of a part of the collectives: 0.5 MB."""

_SHORT_NS = 1 << 30
"""Times that differ by less fit into 32 bits, and so do their differences."""

TIMES = ("arrive", "done", "blocked_from", "blocked_until")
_TWINS = {"blocked_from": "arrive", "blocked_until": "done"}
"""Columns that are equal where all calls are synchronous."""


@dataclass(frozen=True, slots=True, order=True)
class GroupFacts:
    """A process group, without the list of its ranks: there may be thousands."""

    role: str  # first: who knows it tells more
    label: str
    size: int  # 0: not known


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns, one row per collective; times in ns of the run's time line."""

    group: Array
    seq: Array
    step: Array
    op: Array  # place in FAMILIES of the aggregate
    nbytes: Array
    arrive: Array
    done: Array  # the latest moment of completion
    blocked_from: Array  # the caller made no progress from here...
    blocked_until: Array  # ...to here
    isolated: BoolArray  # nothing but its transfer kept it in flight, once all had come
    bound_ns: Array  # its times may be later by so much, on the clock of its own host

    def __len__(self) -> int:
        return len(self.seq)

    def take(self, chosen: Array | BoolArray) -> Rows:
        """Return some of the rows, without a copy if they are all, as they are."""
        every = np.arange(len(self))
        if np.array_equal(every[chosen], every):
            return self
        return Rows(*(getattr(self, field.name)[chosen] for field in fields(self)))


_COLUMNS = tuple(one.name for one in fields(Rows) if one.name not in ("group", "seq"))


@dataclass(frozen=True, slots=True)
class RankArrivals:
    """One rank."""

    node: tuple[str, str]  # host and boot
    bound_ns: int | None  # of its clock; None: not known
    rows: Rows
    one_in: Mapping[int, OneIn]  # by group: the sample of its collectives
    is_numbered: bool  # its program counted; else a profiler did from its window's start
    before_ns: int | None  # of measured steps, from a phase to the next forward
    pace: Pace | None
    rooted_ns: Mapping[str, int]  # blocked in measured steps, by family of what has a root

    @property
    def is_sample(self) -> bool:
        """Whether collectives were left out."""
        return any(found != OneIn() for found in self.one_in.values())

    def in_group(self, number: int) -> RankArrivals:
        """Return one group, ascending by number; numbers that come twice tell nothing."""
        mine = np.flatnonzero(self.rows.group == number)
        seq = self.rows.seq[mine]
        if not (np.diff(seq) > 0).all():  # rarely
            _, first, counts = np.unique(seq, return_index=True, return_counts=True)
            mine = mine[first[counts == 1]]
        one_in = {number: self.one_in.get(number, OneIn())}
        return replace(self, rows=self.rows.take(mine), one_in=one_in, pace=None)

    def sharing(self, other: RankArrivals | None) -> RankArrivals:
        """Return the same arrivals; what is equal to that of another rank is shared."""
        if other is None:
            return self
        pairs = [(getattr(self.rows, f.name), getattr(other.rows, f.name)) for f in fields(Rows)]
        columns = [theirs if np.array_equal(mine, theirs) else mine for mine, theirs in pairs]
        node = other.node if self.node == other.node else self.node
        one_in = other.one_in if self.one_in == other.one_in else self.one_in
        return replace(self, node=node, one_in=one_in, rows=Rows(*columns))


@dataclass(frozen=True, slots=True)
class Matched:
    """Collectives of one group that all its ranks present have; matrices are ranks x collectives.

    Times of a collective are since the first rank of the group entered it. Where clocks are not
    known, the ranks are set by its ends: `by_ends`.
    """

    group: GroupFacts
    ranks: tuple[int, ...]
    seq: Array  # as the rank with the most rows counted
    step: Array
    op: Array
    nbytes: Array
    arrive: Array
    done: Array
    blocked_from: Array
    blocked_until: Array
    isolated: BoolArray
    bound_ns: Array  # as in `Rows`
    node: Array  # of each rank, numbered
    clock_ns: Array  # of each rank: error of its clock
    one_in: OneIn
    nodes: int  # how many its ranks are on
    unplaced: tuple[int, ...]  # ranks whose numbers match no other rank's
    by_ends: bool

    @property
    def is_whole(self) -> bool:
        """Whether every member of the group is there."""
        return bool(self.group.size) and len(self.ranks) == self.group.size

    def weight(self, numbers: Sequence[int] | None) -> float:
        """Return for how many collectives of some steps, or of all, one that was kept stands."""
        steps = float(self.one_in.steps)
        if numbers is not None:
            steps = len(numbers) / max(len(in_sample(numbers, self.one_in.steps)), 1)
        return steps * self.one_in.calls

    def in_steps(self, numbers: Sequence[int]) -> Matched:
        """Return the collectives of some steps."""
        chosen = np.isin(self.step, numbers)
        if chosen.all():
            return self
        columns = {name: _columns(getattr(self, name), chosen) for name in _MATRICES}
        return replace(self, seq=self.seq[chosen], step=self.step[chosen], **columns)

    def parts(self) -> Iterator[Matched]:
        """Yield the collectives in parts, whose matrices take at most 0.5 MB each."""
        count = max(CELLS // len(self.ranks), 1)
        for first in range(0, len(self.seq), count):
            some = slice(first, first + count)
            columns = {name: getattr(self, name)[:, some] for name in _MATRICES}
            yield replace(self, seq=self.seq[some], step=self.step[some], **columns)

    @property
    def doubt_ns(self) -> Array:
        """By how much the arrival of each rank and that of the last may be wrongly compared."""
        doubt = _placement(self.arrive, self.bound_ns)
        if self.by_ends:
            # Ends differ by less than the shortest call took: what is below it tells nothing.
            doubt = doubt + (self.done - self.arrive).min(axis=0)
        elif (self.node != self.node[0]).any():
            last = np.argmax(self.arrive, axis=0)
            bound_ns = self.clock_ns[:, None] + self.clock_ns[last]
            doubt = doubt + np.where(self.node[:, None] == self.node[last], 0, bound_ns)
        return np.broadcast_to(doubt, self.arrive.shape)

    @property
    def agrees(self) -> BoolArray:
        """Say of which collectives all ranks name the same operation."""
        return np.asarray((self.op == self.op[:1]).all(axis=0), np.bool_)


def match(ranks: Mapping[int, RankArrivals], groups: Mapping[int, GroupFacts]) -> list[Matched]:
    """Match the collectives of each group that at least two ranks have."""
    members: defaultdict[int, dict[int, RankArrivals]] = defaultdict(dict)
    for rank in sorted(ranks):
        arrivals = ranks[rank]
        for number in np.unique(arrivals.rows.group).tolist():
            found = members[number]
            last = found[next(reversed(found))] if found else None
            found[rank] = arrivals.in_group(number).sharing(last)
    matched = []
    for number, facts in groups.items():
        if len(present := members.pop(number, {})) > 1:
            matched.append(_match_group(facts, present))
    return [one for one in matched if one is not None]


def _match_group(facts: GroupFacts, members: dict[int, RankArrivals]) -> Matched | None:
    reference = max(members, key=lambda rank: (len(members[rank].rows), -rank))
    shifts = {rank: _shift(reference, rank, members) for rank in members}
    placed = [rank for rank in members if shifts[rank] is not None]
    if len(placed) < 2:
        return None
    numbers = {rank: _shifted(members[rank].rows.seq, shifts[rank] or 0) for rank in placed}
    common = reduce(lambda one, other: one[_shared(one, other)[0]], numbers.values())
    if not len(common):
        return None
    rows = [members[rank].rows for rank in placed]
    rows = [
        one if len(one) == len(common) else one.take(np.isin(numbers[rank], common))
        for rank, one in zip(placed, rows, strict=True)
    ]
    return _aligned(facts, placed, rows, common, members)


def _shifted(seq: Array, shift: int) -> Array:
    return seq + shift if shift else seq


def _shared(one: Array, other: Array) -> tuple[Array, Array]:
    """Return where in each the numbers are that both have (ascending); mostly they are the same."""
    if np.array_equal(one, other):
        every = np.arange(len(one))
        return every, every
    _, mine, theirs = np.intersect1d(one, other, assume_unique=True, return_indices=True)
    return mine, theirs


def _aligned(
    facts: GroupFacts,
    placed: Sequence[int],
    rows: list[Rows],
    common: Array,
    ranks: dict[int, RankArrivals],
) -> Matched:
    """Put the rows of ranks into matrices, and take them out of `rows` and `ranks`."""
    present = [ranks[rank] for rank in placed]
    nodes = {node: code for code, node in enumerate(sorted({one.node for one in present}))}
    node = np.array([nodes[one.node] for one in present], np.int64)
    by_ends = any(one.bound_ns is None for one in present)
    clock_ns = np.array([one.bound_ns or 0 for one in present], np.int64)
    found = [sample for one in present for sample in one.one_in.values()]
    one_in = OneIn(*(max(column) for column in zip(*found, strict=True)))
    unplaced = tuple(sorted(ranks.keys() - placed))
    columns = {name: [getattr(one, name) for one in rows] for name in _COLUMNS}
    for name, twin in _TWINS.items():
        if all(map(np.array_equal, columns[name], columns[twin])):
            del columns[name]
    for held in (present, rows, ranks):  # what is not needed any more
        held.clear()
    ends = columns["done"] if by_ends else [np.zeros_like(common)] * len(placed)
    origin = columns["arrive"][0] - ends[0]
    stack: dict[str, Any] = {}
    for name in [*columns]:
        column = columns.pop(name)
        stack[name] = _since(origin, column, ends) if name in TIMES else _stacked(column)
    for name, twin in _TWINS.items():
        stack.setdefault(name, stack[twin])
    return Matched(
        group=facts,
        ranks=tuple(placed),
        seq=common,
        step=stack.pop("step").max(axis=0),
        node=node,
        clock_ns=clock_ns,
        one_in=one_in,
        nodes=len(nodes),
        unplaced=unplaced,
        by_ends=by_ends,
        **stack,
    )


def _columns(matrix: Any, chosen: BoolArray) -> Any:
    """Return some columns; where all rows are one in memory, they stay so."""
    if matrix.strides[0]:
        return matrix[:, chosen]
    return np.broadcast_to(matrix[0, chosen], (len(matrix), int(np.count_nonzero(chosen))))


def _stacked(columns: Sequence[Any]) -> Any:
    """Return a matrix, which takes the memory of one row where all are equal."""
    first = columns[0]
    if all(one is first or np.array_equal(one, first) for one in columns):
        return np.broadcast_to(first, (len(columns), len(first)))
    return np.stack(columns)


def _since(origin: Array, columns: Sequence[Array], ends: Sequence[Array]) -> Any:
    """Return times since an origin, each rank set by its ends; in 32 bits if they fit."""
    if all(one is some[0] for some in (columns, ends) for one in some):
        return _stacked([columns[0] - ends[0] - origin] * len(columns))
    matrix = np.empty((len(columns), len(origin)), np.int32)
    for row, column, end in zip(matrix, columns, ends, strict=True):
        since_ns = column - end - origin
        if (np.abs(since_ns) >= _SHORT_NS).any():
            return np.stack([c - e - origin for c, e in zip(columns, ends, strict=True)])
        row[:] = since_ns
    return matrix


def _placement(arrive: Array, bound_ns: Array) -> Array:
    """Return the doubt about when a device was where it was, for each rank against the last."""
    if not bound_ns.strides[0]:
        return bound_ns[:1]
    last = np.argmax(arrive, axis=0)
    return np.maximum(bound_ns, np.take_along_axis(bound_ns, last[None, :], axis=0))


def _shift(reference: int, rank: int, members: Mapping[int, RankArrivals]) -> int | None:
    """Return what to add to the numbers of `rank`; None if nothing makes them fit."""
    here, there = members[reference], members[rank]
    one, other = here.rows, there.rows
    if rank == reference:
        return 0
    clocks_known = here.bound_ns is not None and there.bound_ns is not None
    if here.is_numbered and there.is_numbered and not clocks_known:
        return 0
    doubt = 0 if here.node == there.node else (here.bound_ns or 0) + (there.bound_ns or 0)
    if _fits(one, other, 0, doubt):
        return 0
    if here.is_sample or there.is_sample or not len(one) or not len(other):
        return None
    shift = _likely_shift(one, other)
    return shift if _fits(one, other, shift, doubt) else None


def _likely_shift(one: Rows, other: Rows) -> int:
    """Return the difference in number between most collectives of `other` and the nearest end."""
    ends, order = np.sort(one.done), np.argsort(one.done, kind="stable")
    after = np.minimum(np.searchsorted(ends, other.done), len(ends) - 1)
    before = np.maximum(after - 1, 0)
    is_before = other.done - ends[before] <= ends[after] - other.done
    nearest = order[np.where(is_before, before, after)]
    shifts, counts = np.unique(one.seq[nearest] - other.seq, return_counts=True)
    return int(shifts[np.argmax(counts)])


def _fits(one: Rows, other: Rows, shift: int, doubt_ns: int) -> bool:
    """Say whether, so shifted, neither leaves before the other has entered."""
    mine, theirs = _shared(one.seq, other.seq + shift)
    if not len(mine):
        return False
    fits = (one.arrive[mine] <= other.done[theirs] + doubt_ns) & (
        other.arrive[theirs] <= one.done[mine] + doubt_ns
    )
    return float(np.mean(fits)) >= _AGREEING
