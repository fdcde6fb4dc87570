"""Waiting for the last arrival, apart from transfer: by rank and step, and who was last.

For collective i with arrivals a_r, and H_r the time in which it held rank r without progress:
wait_r = | H_r and [a_r, max a) |. The rest of H_r is transfer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dsprof.analysis.aggregates.arrivals import Arrivals
from dsprof.analysis.alignment.matching import TIMES, Matched
from dsprof.analysis.rank.intervals import Array
from dsprof.analysis.rank.sampling import OneIn, in_sample

_WITHIN_STAGE = frozenset(
    {"data", "expert_data", "shard", "replicate", "hpz", "tensor", "sequence", "context", "expert"}
)
"""Roles of groups whose ranks do the same work, in a run that also has stages of a pipeline."""

PAIRED_RANKS = 512
"""With more ranks, the matrix of all pairs would not fit where this runs beside training."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """Matrices are ranks x steps in ns; -1 in `waited_ns` where nothing of a step was matched.

    `steps` holds -1 for what belongs to no step. Of many collectives only a sample is compared: of
    whole steps, which are these. Sums over all steps are scaled.
    """

    ranks: tuple[int, ...]
    steps: Array
    waited_ns: Array  # for the last arrival
    caused_ns: Array  # of each rank, by arriving last: mean wait of the others
    transfer_ns: Array  # of each rank
    lasts: Array  # of each rank: collectives to which it came last, beyond doubt
    met: Array  # of each rank: collectives matched
    asked: int  # steps
    compared: int  # those of them in the sample, matched or not
    calls: int  # in a sampled step, one in so many collectives is compared
    pairs_ns: Array | None  # ranks x ranks: how long each waited for each; None for many
    doubt_ns: int  # below it, who came later was not asked: of the group with most, a median
    unsure_ns: Array  # of each rank: waits below the doubt, which count as transfer
    clocks_ns: int = 0  # the doubt because of which blocked times are compared instead of arrivals

    @property
    def one_in(self) -> int:
        """In how many collectives one is compared."""
        return round(self.calls * self._weight)

    @property
    def _weight(self) -> float:
        return self.asked / max(self.compared, 1)

    @property
    def waited_in_all_ns(self) -> Array:
        """How long each rank waited, in all steps together."""
        waited_ns: Array = self.waited_ns.clip(0).sum(axis=1)
        return _times(waited_ns, self._weight)

    def may_hide(self, delay_ns: float) -> bool:
        """Whether half of the ranks may wait so long in a step, mostly below the doubt.

        A wait below the doubt may be twice as long: clocks are set to the middle of what may be.
        """
        if not len(self.ranks):
            return False
        surely, unsure = self.waited_in_all_ns, self.unsure_ns
        least_ns = delay_ns * max(self.asked, 1)
        may_wait = (surely + 2 * unsure >= least_ns) & (unsure >= least_ns / 2)
        return 2 * int(np.count_nonzero(may_wait)) >= len(self.ranks)

    @property
    def waited_for(self) -> int | None:
        """The rank that causes two thirds of all waits, if one does.

        Of two ranks that are late in turn, one causes somewhat more than half.
        """
        place = int(np.argmax(self.caused_ns)) if len(self.ranks) else 0
        is_main = len(self.ranks) and 3 * self.caused_ns[place] > 2 * self.caused_ns.sum()
        return self.ranks[place] if is_main else None

    @property
    def collectives(self) -> int:
        """How many a rank took part in at most."""
        return int(self.met.max(initial=0))


def alike(arrivals: Arrivals) -> list[list[Matched]]:
    """Return sets of groups whose ranks do the same work: all, or those of a stage of a pipeline.

    Stages of a pipeline do different work, and wait for each other by design. Within one, a late
    rank of a tensor-parallel group makes the others of it late to their data-parallel groups.
    """
    if all(group.role != "pipeline" for group in arrivals.groups.values()):
        return [arrivals.matched] if arrivals.matched else []
    stages: list[tuple[set[int], list[Matched]]] = []
    for one in arrivals.matched:
        if one.group.role in _WITHIN_STAGE:
            met = [stage for stage in stages if not stage[0].isdisjoint(one.ranks)]
            apart = [stage for stage in stages if stage[0].isdisjoint(one.ranks)]
            ranks = set(one.ranks).union(*(stage[0] for stage in met))
            stages = [*apart, (ranks, [*(group for stage in met for group in stage[1]), one])]
    return [groups for _, groups in stages]


def lateness(matched: Iterable[Matched], wanted: Sequence[int] | None = None) -> Lateness:
    """Add up the waits of all groups, in the steps `wanted`, or in all and what is in none."""
    matched = [*matched]
    ranks = sorted({rank for one in matched for rank in one.ranks})
    steps = np.unique(np.concatenate([one.step for one in matched] or [np.zeros(0, np.int64)]))
    asked = steps if wanted is None else np.asarray(wanted, np.int64)
    one_in = most_sampled(matched)
    compared = in_sample(asked, one_in.steps)
    steps = steps[np.isin(steps, compared)]
    shape = len(ranks), len(steps)
    waited, seen = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    caused, transfer, unsure, lasts, met = (np.zeros(len(ranks), np.int64) for _ in range(5))
    pairs = np.zeros((len(ranks), len(ranks)), np.int64) if len(ranks) <= PAIRED_RANKS else None
    doubts = [0]
    for whole in matched:
        row, doubt = np.searchsorted(ranks, whole.ranks), []
        for part in whole.parts():
            one = part if wanted is None else part.in_steps(wanted)
            if not len(one.seq):
                continue
            split, weight = split_waits(one), whole.weight(wanted)
            mine = np.isin(one.step, steps)  # a group with few calls is there in other steps, too
            step = np.searchsorted(steps, one.step[mine])
            _add(waited, row, step, split.waited_ns[:, mine] * one.one_in.calls)
            transfer[row] += _times(split.transfer_ns.sum(axis=1), weight)
            unsure[row] += _times(split.unsure_ns, weight)
            np.add.at(caused, row[split.last], _times(split.caused_ns, weight))
            np.add.at(lasts, row[split.last], (split.caused_ns > 0).astype(np.int64))
            if pairs is not None:
                _add(pairs, row, row[split.last], _times(split.waited_ns, weight))
            met[row] += len(one.seq)
            seen[row[:, None], step[None, :]] = True
            doubt.append(split.doubt_ns)
        if doubt:
            doubts.append(int(np.median(np.concatenate(doubt))))
    waited[~seen] = -1
    return Lateness(
        ranks=tuple(ranks),
        steps=steps,
        waited_ns=waited,
        caused_ns=caused,
        transfer_ns=transfer,
        lasts=lasts,
        met=met,
        asked=len(asked),
        compared=len(compared),
        calls=one_in.calls,
        pairs_ns=pairs,
        doubt_ns=max(doubts),
        unsure_ns=unsure,
    )


def by_blocked_time(late: Lateness, matched: Iterable[Matched]) -> Lateness:
    """Return the same with waits that need no common clock.

    Ranks that step together are blocked for less where they work for longer: a rank waits for as
    long as it is blocked more than the one that is blocked least.
    """
    _, held_ns = held(matched, late.steps.tolist())
    waited_ns = np.where(late.waited_ns < 0, -1, held_ns - held_ns.min(axis=0))
    return replace(late, waited_ns=waited_ns, doubt_ns=0, clocks_ns=late.doubt_ns)


def held(matched: Iterable[Matched], wanted: Sequence[int]) -> tuple[Array, Array]:
    """Return ranks, and how long collectives held each of them in each step compared, in ns."""
    matched = [*matched]
    ranks = np.unique(np.array([rank for one in matched for rank in one.ranks], np.int64))
    steps = in_sample(np.asarray(wanted, np.int64), most_sampled(matched).steps)
    held_ns = np.zeros((len(ranks), len(steps)), np.int64)
    for whole in matched:
        row = np.searchsorted(ranks, whole.ranks)
        for part in whole.parts():
            one = part.in_steps(steps.tolist())
            if len(one.seq):
                took_ns = one.blocked_until.astype(np.int64) - one.blocked_from.astype(np.int64)
                each_ns = np.maximum(took_ns, 0) * one.one_in.calls
                _add(held_ns, row, np.searchsorted(steps, one.step), each_ns)
    return ranks, held_ns


def most_sampled(matched: Iterable[Matched]) -> OneIn:
    """Return the sample that all groups have in common."""
    return OneIn(*map(max, zip(OneIn(), *(one.one_in for one in matched), strict=True)))


def _times(times_ns: Array, weight: float) -> Array:
    return times_ns if weight == 1 else np.rint(times_ns * weight).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Causes:
    """Who arrived last, and the mean wait of the others for it: columns, a row per collective.

    Of a sample, those of steps that are in it.
    """

    one_in: OneIn
    ranks: tuple[int, ...]
    place: Array  # in `ranks`
    step: Array
    caused_ns: Array

    def by_rank(self, steps: Sequence[int] | Array) -> Array:
        """Return what each rank caused in a step: the mean over those of `steps` in the sample."""
        steps = in_sample(steps, self.one_in.steps)
        inside, sums = np.isin(self.step, steps), np.zeros(len(self.ranks), np.int64)
        np.add.at(sums, self.place[inside], self.caused_ns[inside])
        return sums // max(len(steps), 1)

    def worst_step(self, place: int, steps: Sequence[int]) -> int:
        """Return in which of the steps a rank caused most, the first of equal ones."""
        inside = np.isin(self.step, steps) & (self.place == place)
        numbers, column = np.unique(self.step[inside], return_inverse=True)
        sums = np.zeros(len(numbers), np.int64)
        np.add.at(sums, column.ravel(), self.caused_ns[inside])
        return int(numbers[np.argmax(sums)])


def causes(matched: Sequence[Matched]) -> Causes:
    """Return who arrived last to the collectives of all groups: `lateness` without the waits."""
    ranks = sorted({rank for one in matched for rank in one.ranks})
    columns, one_in = [np.zeros((3, 0), np.int64)], most_sampled(matched)
    for whole in matched:
        row = np.searchsorted(ranks, whole.ranks)
        for one in whole.parts():
            split = split_waits(one)
            caused_ns = split.caused_ns * one.one_in.calls
            columns.append(np.stack([row[split.last], one.step, caused_ns]))
    return Causes(one_in, tuple(ranks), *np.concatenate(columns, axis=1))


def _add(sums: Array, rows: Array, columns: Array, values: Array) -> None:
    """Add `values` at these rows and columns, which may repeat; `np.add.at` is ten times slower."""
    order = np.argsort(columns, kind="stable")
    places, starts = np.unique(columns[order], return_index=True)
    sums[np.ix_(rows, places)] += np.add.reduceat(values[:, order], starts, axis=1)


@dataclass(frozen=True, slots=True)
class Split:
    """The collectives of one group: matrices are ranks x collectives."""

    last: Array  # row of the rank that came last to each
    waited_ns: Array
    transfer_ns: Array
    caused_ns: Array  # of each collective: mean wait of those who were not last
    doubt_ns: Array  # of each collective, the largest
    unsure_ns: Array  # of each rank: waits that are below the doubt


def split_waits(one: Matched) -> Split:
    """Split the time that each collective held each rank."""
    one = _set_by_ends(one)
    arrive, begun, until = (
        times.astype(np.int64) for times in (one.arrive, one.blocked_from, one.blocked_until)
    )
    last, latest, doubt_ns = np.argmax(arrive, axis=0), arrive.max(axis=0), one.doubt_ns
    waited = np.maximum(np.minimum(until, latest) - np.maximum(begun, arrive), 0)
    is_unsure = latest - arrive <= doubt_ns
    unsure = np.where(is_unsure, waited, 0).sum(axis=1)
    waited[is_unsure] = 0
    held = np.maximum(until - begun, 0)
    caused = waited.sum(axis=0) // max(len(one.ranks) - 1, 1)
    transfer = np.maximum(held - waited, 0)
    return Split(last, waited, transfer, caused, doubt_ns.max(axis=0), unsure)


def _set_by_ends(one: Matched) -> Matched:
    """Set each host by the ends of the collectives where its clock is less exact than these.

    A rank that is late in every collective leaves half of its delay open between two hosts' clocks.
    Ends differ by less than the shortest call took.
    """
    hosts, host = np.unique(one.node, return_inverse=True)
    if one.by_ends or len(hosts) < 2:
        return one
    order = np.argsort(host, kind="stable")
    first = np.searchsorted(host[order], np.arange(len(hosts)))
    ends = np.minimum.reduceat(one.done[order].astype(np.int64), first, axis=0)[host]
    half_ns = np.median((one.done - one.arrive).min(axis=0)) / 2
    times = {name: getattr(one, name) - ends for name in TIMES}
    by_ends = replace(one, clock_ns=np.full(len(host), half_ns, np.int64), **times)
    is_better = np.median(by_ends.doubt_ns) < np.median(one.doubt_ns)
    return by_ends if is_better else one
