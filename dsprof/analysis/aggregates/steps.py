"""Where the time of each step went, rank by rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dsprof.analysis.per_rank import PerRank
from dsprof.analysis.rank.intervals import (
    Array,
    Intervals,
    blocked,
    copies,
    exposed,
    phases,
    unseen,
    without_size,
)
from dsprof.analysis.rank.kernel_time import DeviceTime
from dsprof.analysis.rank.profiled_steps import covered_steps, parts_around, tied_profile
from dsprof.analysis.rank.record_columns import span_columns, step_columns
from dsprof.analysis.rank.sampling import (
    is_sampled,
    kept_steps,
    longest_steps,
    sampled_steps,
    steps_left_out,
)
from dsprof.analysis.rank.steps import (
    choose_measured,
    counted_steps,
    evenly_spaced,
    in_steps,
    is_timed,
    kernels,
    measured_rows,
    measured_steps,
    on_host_clock,
    places,
    profiled_steps,
    recorded_steps,
    warmup_steps,
)
from dsprof.analysis.step_rows import Parts, RankSteps, SameSteps, means
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import CounterRow

_LARGEST = 1 << 62
"""Sums beyond it are of numbers that no run can have."""

_SLACK, _SLACK_STEPS = 0.1, 2
"""A rank that lacks less of the usual steps at each end, as a share or a number, counts throughout.

Killed ranks seldom end with the same step.
"""


@dataclass(frozen=True)
class Steps(Aggregate):
    """The steps of all ranks."""

    ranks: Mapping[int, RankSteps]
    longest: Mapping[int, RankSteps]  # beside these: in no mean, total or share

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Steps:
        """Split the steps of one rank into exposed communication, compute, copies and the rest."""
        kept, longest, steps = kept_steps(trace), longest_steps(trace), step_columns(trace)
        number = np.union1d(kept, longest)
        rows = steps.rows_of(number)
        start, end, micro_steps = (
            column[rows] for column in (steps.start_ns, steps.end_ns, steps.micro_steps)
        )
        by_kernels, unwaited, split = kernels(trace), 0, _Split()
        if by_kernels is not None:
            device = DeviceTime.of(by_kernels).parts(start, end)
            split = _Split(device.exposed_ns, device.compute_ns, device.copies_ns, device.idle_ns)
        elif trace.device is None:
            unwaited = _unwaited(trace)
            split = _split(trace, number, start, end) if not unwaited else split
        seen = covered_steps(trace)
        row = RankSteps(
            number,
            micro_steps,
            end - start,
            split.exposed_ns,
            split.compute_ns,
            split.copies_ns,
            np.isin(number, counted_steps(trace)),
            *_traffic(trace, number),
            _forwards(trace, number),
            unwaited,
            _estimated(trace),
            trace.is_device_timed or bool(profiled_steps(trace)),
            split.idle_ns,
            np.isin(number, list(seen)) if seen and split.idle_ns is not None else None,
            by_kernels is not None,
            len(recorded_steps(trace)),
            sampled_steps(trace).strides,
            trace.newest_from,
            len(measured_steps(trace)),
        )
        found = (row.of(numbers).sharing() for numbers in (kept, longest))
        return cls(*(PerRank({trace.rank: one}) for one in found))

    def alike(self) -> Steps:
        """Return the same with the steps that the smallest sample contains.

        Ranks with more steps keep one in more: means would be over other ranks in each step.
        """
        strides = {row.strides for row in self.ranks.values()}
        if len(strides) < 2:
            return self
        detailed, counted = (max(column) for column in zip(*strides, strict=True))
        are_counted = np.array(self.counted, np.int64)
        numbers = np.array(self.numbers, np.int64)
        is_kept = np.where(
            np.isin(numbers, are_counted),
            is_sampled(numbers, counted),
            is_sampled(numbers, detailed),
        )
        kept = numbers[is_kept]
        ranks = PerRank({rank: row.of(kept) for rank, row in self.ranks.items()})
        return Steps(ranks, self.longest)

    @cached_property
    def recorded(self) -> int:
        """How many steps any rank recorded whole; as many as `numbers`, if all were kept."""
        return max([len(self.numbers), *(row.recorded for row in self.ranks.values())])

    @property
    def is_sampled(self) -> bool:
        """Whether the run is too long to keep all its steps."""
        return self.recorded > len(self.numbers)

    @cached_property
    def numbers(self) -> list[int]:
        """The steps that any rank recorded whole and kept, ascending."""
        return sorted({int(n) for rank in self.ranks.values() for n in rank.number})

    @property
    def after_warmup(self) -> list[int]:
        """The same without the first ones, which allocate and compile."""
        return self.numbers[warmup_steps(len(self.numbers)) :]

    @cached_property
    def even(self) -> list[int]:
        """Steps after warm-up over the whole run, at one distance: none chosen for its length.

        All of them, unless a rolling recording has left some out: it keeps slow ones on purpose.
        """
        numbers = self.after_warmup
        if not numbers or numbers[0] >= self.newest_from:
            return numbers
        spaced: list[int] = evenly_spaced(np.array(numbers, np.int64)).tolist()
        return spaced

    @cached_property
    def newest(self) -> list[int]:
        """Steps after warm-up since a rolling recording has left none out."""
        return [number for number in self.after_warmup if number >= self.newest_from] or self.even

    @property
    def fair(self) -> list[int]:
        """All steps after warm-up that were not chosen for their length: dense where newest."""
        return sorted({*self.even, *self.newest})

    @property
    def series(self) -> list[list[int]]:
        """The steps in which a change of pace shows, at one distance: of the run, and newest."""
        return [self.even] if self.even == self.newest else [self.even, self.newest]

    @cached_property
    def throughout(self) -> Steps:
        """The steps that the same ranks recorded: the mean over others would change with the set.

        Ranks that begin later or end earlier than most are left out, and steps that one of the rest
        lacks. Empty where less than half the ranks are left.
        """
        ends = {rank: row.number[[0, -1]] for rank, row in self.ranks.items() if len(row.number)}
        if not ends:
            return self
        first, last = np.median([*ends.values()], axis=0)
        slack = max(_SLACK * (last - first), _SLACK_STEPS)
        chosen = [
            rank
            for rank, (begin, end) in ends.items()
            if begin <= first + slack and end >= last - slack
        ]
        if 2 * len(chosen) < len(ends):
            chosen = []
        common = _common(self.ranks[rank].number for rank in chosen)
        if len(chosen) == len(self.ranks) and len(common) == len(self.numbers):
            return self
        return Steps(SameSteps(self.ranks, chosen, common), {})

    @cached_property
    def partial_ranks(self) -> list[int]:
        """Ranks that begin later or end earlier than most, or lack many of the measured steps."""
        same, count = self.throughout.ranks, len(self.measured)
        least = count - max(_SLACK * count, _SLACK_STEPS)
        return [
            rank
            for rank, row in self.ranks.items()
            if rank not in same or np.isin(self.measured, row.number).sum() < least
        ]

    @cached_property
    def counted(self) -> list[int]:
        """The steps that are not in full detail on every rank that recorded them, ascending."""
        return sorted({int(n) for rank in self.ranks.values() for n in rank.number[rank.counted]})

    @cached_property
    def measured(self) -> list[int]:
        """The steps that totals and rules take."""
        numbers, counted = np.array(self.numbers, np.int64), np.array(self.counted, np.int64)
        return [int(number) for number in choose_measured(numbers, counted, self.newest_from)]

    @cached_property
    def measured_by_all(self) -> list[int]:
        """The measured steps that all ranks recorded; all measured ones if there are none."""
        count = len(self.ranks)
        return [n for n in self.measured if self.parts[n].ranks == count] or self.measured

    @cached_property
    def newest_from(self) -> int:
        """From here on no rank of a rolling recording has left a step out."""
        return max((row.newest_from for row in self.ranks.values()), default=0)

    @property
    def is_counted(self) -> bool:
        """Whether the measured steps are only in counters, because no others exist."""
        return bool(set(self.measured) & set(self.counted))

    @cached_property
    def parts(self) -> dict[int, Parts]:
        """Each step, as the mean over the ranks that recorded it."""
        return means(self.ranks, np.array(self.numbers, np.int64))

    @cached_property
    def total(self) -> Parts:
        """The sum over the measured steps; the extremes are of ranks that have all of them."""
        chosen = [self.parts[number] for number in self.measured]
        spent = {
            rank: self.measured_ns[rank]
            for rank, row in self.ranks.items()
            if len(chosen) and np.isin(self.measured, row.number).all()
        }
        most = max(spent.values(), default=0)
        return Parts(
            total_ns=sum(part.total_ns for part in chosen),
            exposed_ns=_sum_or_none([part.exposed_ns for part in chosen]),
            compute_ns=_sum_or_none([part.compute_ns for part in chosen]),
            copies_ns=_sum_or_none([part.copies_ns for part in chosen]),
            micro_steps=sum(part.micro_steps for part in chosen),
            slowest_rank=min((rank for rank in spent if spent[rank] == most), default=0),
            fastest_ns=min(spent.values(), default=0),
            slowest_ns=most,
            calls=sum(part.calls for part in chosen),
            nbytes=_sum_or_none([part.nbytes for part in chosen]),
            idle_ns=_sum_or_none([part.idle_ns for part in chosen]),
        )

    @property
    def mean_ns(self) -> float:
        """The length of a measured step, mean over ranks and steps; 0 without any."""
        return self.total.total_ns / max(len(self.measured), 1)

    @property
    def exposed_share(self) -> float | None:
        """Exposed communication / time of the measured steps."""
        if self.total.exposed_ns is None or not self.total.total_ns:
            return None
        return self.total.exposed_ns / self.total.total_ns

    @property
    def exposed_ms_per_step(self) -> float | None:
        """Mean over ranks and measured steps."""
        if self.total.exposed_ns is None or not self.measured:
            return None
        return self.total.exposed_ns / len(self.measured) / 1e6

    @cached_property
    def estimated_share(self) -> float:
        """Part of the exposed communication of the measured steps that is an upper bound."""
        spent = sum(
            int(row.exposed_ns[np.isin(row.number, self.measured)].sum())
            for row in self.ranks.values()
            if row.exposed_ns is not None
        )
        return min(sum(row.estimated_ns for row in self.ranks.values()) / spent, 1) if spent else 0

    def exposed_by_rank(self) -> dict[int, float]:
        """Return the exposed share of the measured steps of each rank that could be measured."""
        shares = {}
        for rank, row in self.ranks.items():
            chosen = np.isin(row.number, self.measured)
            total = int(row.total_ns[chosen].sum())
            if row.exposed_ns is not None and total:
                shares[rank] = int(row.exposed_ns[chosen].sum()) / total
        return shares

    @cached_property
    def rank_steps(self) -> int:
        """The measured steps of each rank, also those not kept: what sums of collectives are of."""
        return sum(row.measured for row in self.ranks.values())

    @cached_property
    def measured_ns(self) -> dict[int, int]:
        """The time that each rank spent in measured steps."""
        return {
            rank: int(row.total_ns[np.isin(row.number, self.measured)].sum())
            for rank, row in self.ranks.items()
        }


class _Split(NamedTuple):
    """The parts of step windows in ns; None: not measurable."""

    exposed_ns: Array | None = None
    compute_ns: Array | None = None
    copies_ns: Array | None = None
    idle_ns: Array | None = None


def _split(trace: RankTrace, number: Array, start: Array, end: Array) -> _Split:
    """Return the parts of each step window by what dsprof saw of waits.

    Compute is None where forward or backward is not marked: a loop without DDP, FSDP or an engine
    shows no forward. Copies are None without any: a library may copy where no hook sees it.
    On a device both are None: phases and copies are those of the host, and what kernels ran only a
    profiler beside tells.
    """
    # Another tool that names no collective may not have looked for any.
    if not is_timed(trace) or (trace.is_foreign and not len(trace.collectives)):
        return _Split()
    waits, moves = exposed(trace), copies(trace)
    seen = waits.within(start, end)
    if not on_host_clock(trace):
        profile = tied_profile(trace) if covered_steps(trace) else None
        if profile is None:
            return _Split(np.minimum(seen, end - start))
        parts = parts_around(waits, profile, start, end)
        return _Split(parts.exposed_ns, parts.compute_ns, parts.copies_ns, parts.idle_ns)
    counted = _from_counters(trace, number, lambda row: row.blocked_ns)
    waiting = np.minimum(seen + counted, end - start)
    detailed = ~np.isin(number, counted_steps(trace))
    moving = np.where(detailed, (moves | waits).within(start, end) - seen, 0)
    copying = moving if len(moves.starts) else None
    working = phases(trace)
    if not len(working.starts) or _lacks_a_phase(trace):
        return _Split(waiting, None, copying)
    inside = (working | waits | moves).within(start, end)
    working_ns = np.where(detailed, np.maximum(inside - waiting - moving, 0), 0)
    return _Split(waiting, working_ns, copying)


def _lacks_a_phase(trace: RankTrace) -> bool:
    spans = span_columns(trace)
    names = {spans.names[code] for code in np.unique(spans.name[~spans.is_annotation])}
    return "step" in names and not {"forward", "backward"} <= names


def _unwaited(trace: RankTrace) -> int:
    rows, chosen = trace.collectives, measured_rows(trace)
    never_seen = unseen(rows) & rows.on_wire & ~rows.is_open
    wanted = set(measured_steps(trace).tolist())
    counted = (row for c in trace.counters if c.step in wanted for row in c.rows)
    # A wait takes time: without any, none was seen.
    asked = (row for row in counted if row.is_async and row.on_wire)
    never = sum(row.calls for row in asked if not row.blocked_ns)
    return int(np.count_nonzero(never_seen[chosen])) + never


def _estimated(trace: RankTrace) -> int:
    rows, chosen = trace.collectives, measured_rows(trace)
    start, end = blocked(rows)
    chosen = chosen[rows.is_estimated[chosen] & ~in_steps(rows.step[chosen], steps_left_out(trace))]
    return Intervals.union(start[chosen], end[chosen]).length_ns


def _forwards(trace: RankTrace, number: Array) -> Array:
    """Count the forwards of each step."""
    spans = span_columns(trace)
    place, found = places(spans.step[spans.named("forward")], number)
    return np.bincount(place[found], minlength=len(number))


def _traffic(trace: RankTrace, number: Array) -> tuple[Array, Array, Array]:
    """Return the collectives on the wire of each step, their bytes, and how many lack a size."""
    rows = trace.collectives
    place, found = places(rows.step, number)
    found &= rows.on_wire
    calls = _from_counters(trace, number, lambda row: row.calls * row.on_wire)
    nbytes = _from_counters(trace, number, lambda row: row.nbytes * row.on_wire)
    np.add.at(calls, place[found], 1)
    np.add.at(nbytes, place[found], rows.nbytes[found])
    unsized = np.zeros_like(calls)
    np.add.at(unsized, place[found], without_size(rows)[found].astype(np.int64))
    return calls, nbytes, unsized


def _from_counters(trace: RankTrace, number: Array, of: Callable[[CounterRow], int]) -> Array:
    """Return the sum of what each row of counters says, step by step; `number` is ascending."""
    sums: dict[int, int] = defaultdict(int)
    for counters in trace.counters:
        sums[counters.step] += sum(of(row) for row in counters.rows)
    told = np.array([min(max(spent, 0), _LARGEST) for spent in sums.values()], np.int64)
    place, found = places(np.array([*sums], np.int64), number)
    column = np.zeros(len(number), np.int64)
    column[place[found]] = told[found]
    return column


def _common(columns: Iterable[Array]) -> Array:
    """Return the steps that are in all columns."""
    found: Array | None = None
    for column in columns:
        if found is None or not np.array_equal(found, column):
            found = column if found is None else np.intersect1d(found, column, assume_unique=True)
    return np.zeros(0, np.int64) if found is None else found


def _sum_or_none(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
