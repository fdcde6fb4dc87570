"""When each rank entered and left the collectives that no rank leaves before all have entered."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from dsprof.analysis.alignment.matching import (
    GroupFacts,
    Matched,
    RankArrivals,
    Rows,
    match,
)
from dsprof.analysis.per_rank import PerRank
from dsprof.analysis.rank.intervals import (
    Array,
    Intervals,
    blocked,
    completed,
    exposed,
    phases,
)
from dsprof.analysis.rank.isolated_transfers import isolated
from dsprof.analysis.rank.pace import pace
from dsprof.analysis.rank.record_columns import span_columns, step_columns
from dsprof.analysis.rank.sampling import OneIn, sample_calls, share_of, steps_left_out
from dsprof.analysis.rank.steps import in_steps, is_timed, measured_steps, places
from dsprof.analysis.summary import Aggregate, RankClock, greatest, joined_by
from dsprof.trace.collectives import ROOTED, SYNCHRONISING, family
from dsprof.trace.columns import BoolArray, IntArray
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Group
from dsprof.trace.sharing import shared

ROWS = 1 << 19
"""Collectives kept of all ranks together: 40 MB. Beyond, each rank keeps the same sample."""
_LEAST_ROWS = 64  # of a rank, however many there are

_GROUPED_KERNEL = "send_recv"
"""Profilers name others so, too; matching shows whether all ranks took part."""
FAMILIES = (*sorted(SYNCHRONISING), _GROUPED_KERNEL)


@dataclass(frozen=True)
class Arrivals(Aggregate):
    """Rows of each rank, on the time line of the run, and the groups that they name."""

    ranks: PerRank[RankArrivals]
    groups: dict[int, GroupFacts] = field(metadata=joined_by(greatest))

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Arrivals:
        """Take the collectives of one rank, or a sample that is the same on all ranks."""
        rows = trace.collectives
        names = {number: _digest(group.key) for number, group in trace.groups.items()}
        facts = {names[n]: _facts(group) for n, group in trace.groups.items()}
        chosen = np.flatnonzero(_usable(trace) & ~in_steps(rows.step, steps_left_out(trace)))
        chosen, one_in = _sampled(trace, chosen, share_of(trace, ROWS, _LEAST_ROWS, ROWS))
        own_pace = pace(trace)  # before the rows: it takes twice their memory
        arrivals = RankArrivals(
            node=(trace.header.host, trace.header.boot_id),
            bound_ns=clock.bound_ns,
            rows=_rows(trace, chosen, names, clock),
            one_in=shared({names[n]: found for n, found in one_in.items() if n in names}),
            is_numbered=trace.device is None,
            before_ns=_before_forward(trace),
            pace=own_pace,
            rooted_ns=_rooted(trace),
        )
        return cls(PerRank({trace.rank: arrivals}), facts)

    @cached_property
    def matched(self) -> list[Matched]:
        """Collectives that all ranks of a group present took part in, group by group."""
        return match(self.ranks, self.groups)


def _sampled(trace: RankTrace, chosen: Array, most: int) -> tuple[Array, dict[int, OneIn]]:
    """Sample each group by itself, so that many calls of one hide no other; and one in how many."""
    if len(chosen) <= most:
        return chosen, {}
    groups = trace.collectives.group[chosen]
    kept, one_in = [], {}
    numbers, counts = np.unique(groups, return_counts=True)
    for left, place in enumerate(np.argsort(counts, kind="stable").tolist()):
        number = int(numbers[place])
        share = max(most // (len(numbers) - left), 1)
        mine, one_in[number] = sample_calls(trace, chosen[groups == number], share)
        kept.append(mine)
        most -= len(mine)
    return np.sort(np.concatenate(kept)), one_in


def _usable(trace: RankTrace) -> BoolArray:
    """Say which rows have a known start, a known end, and need all ranks of their group."""
    rows = trace.collectives
    if trace.is_sampled or not (is_timed(trace) or trace.device is not None):
        return np.zeros(len(rows), np.bool_)
    is_group = _kinds(trace)[rows.op] >= 0
    alone = [number for number, group in trace.groups.items() if group.size == 1]
    ended = (_ends(trace) != 0) & ~rows.is_open & ~rows.is_untimed & ~rows.is_background
    return np.asarray(is_group & ended & rows.on_wire & ~np.isin(rows.group, alone), np.bool_)


def _rows(trace: RankTrace, chosen: Array, names: dict[int, int], clock: RankClock) -> Rows:
    rows = trace.collectives
    apart = isolated(trace)[chosen]  # first, as the pace
    arrive, done = rows.issue_ns[chosen].astype(np.int64), _ends(trace)[chosen].astype(np.int64)
    # A profiler does not see who waits for a kernel: it holds its stream all its time.
    held = (arrive, done) if trace.device is not None else [t[chosen] for t in blocked(rows)]
    groups = [names.get(int(number), 0) for number in np.unique(rows.group[chosen])]
    place = np.searchsorted(np.unique(rows.group[chosen]), rows.group[chosen])
    arrived, ended, begun, until = (clock.on_run(times) for times in (arrive, done, *held))
    return Rows(
        group=shared(np.array(groups, np.int64)[place]),
        seq=shared(rows.seq[chosen].astype(np.int64)),
        step=shared(rows.step[chosen].astype(np.int64)),
        op=shared(_kinds(trace)[rows.op[chosen]]),
        nbytes=shared(rows.nbytes[chosen].astype(np.int64)),
        arrive=arrived,
        done=ended,
        # Those of synchronous calls are the same.
        blocked_from=arrived if np.array_equal(begun, arrived) else begun,
        blocked_until=ended if np.array_equal(until, ended) else until,
        isolated=shared(apart),
        bound_ns=shared(rows.bound_ns[chosen].astype(np.int64)),
    )


def _ends(trace: RankTrace) -> IntArray:
    """Return the latest moment of completion; 0 where it was not seen.

    A profiler's times count from its first line, which need not be the earliest event.
    """
    rows = trace.collectives
    return rows.done_ns if trace.device is not None else completed(rows)


def _kinds(trace: RankTrace) -> Array:
    """Return the place in FAMILIES of each word; -1 for what some ranks may leave early."""
    places = {name: place for place, name in enumerate(FAMILIES)}
    if trace.device is None:
        places.pop(_GROUPED_KERNEL)
    kinds = [places.get(word, places.get(family(word), -1)) for word in trace.collectives.words]
    return np.array(kinds, np.int64)


def _digest(key: str) -> int:
    """Return a number for the key of a group: the key itself lists all its ranks."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=7).digest(), "big")


def _facts(group: Group) -> GroupFacts:
    return GroupFacts(group.role, group.label, group.size)


def _before_forward(trace: RankTrace) -> int | None:
    """Return the time of measured steps from a phase to the next forward; None without any.

    Each micro-step begins with a forward, and takes a batch before it. Waits are left out.
    """
    spans, steps, wanted = span_columns(trace), step_columns(trace), measured_steps(trace)
    place, found = places(spans.step, wanted)
    found &= spans.named("forward") & ~spans.is_annotation
    if not found.any() or trace.is_device_timed or trace.device_steps:  # another clock
        return None
    begins, busy = spans.start_ns[found].astype(np.int64), phases(trace)
    own = np.searchsorted(busy.starts, begins)
    is_first = np.append(busy.starts, -1)[own] == begins  # not inside another phase
    ended = np.append(busy.ends, np.iinfo(np.int64).min)[own - 1]
    begun = steps.start_ns[steps.rows_of(wanted[place[found]])]
    gaps = Intervals.union(np.maximum(ended, begun)[is_first], begins[is_first])
    return (gaps - exposed(trace)).length_ns


def _rooted(trace: RankTrace) -> dict[str, int]:
    """Return how long each family of ROOTED blocked the rank in measured steps.

    Gradients and parameters are left out: libraries share them out over the roots.
    """
    rows = trace.collectives
    start, end = blocked(rows)
    counted = in_steps(rows.step, measured_steps(trace)) & rows.on_wire
    counted &= (rows.flush <= 0) & (rows.fetch <= 0)
    found: dict[str, int] = {}
    for code, word in enumerate(rows.words):
        if (name := family(word)) in ROOTED:
            mine = counted & (rows.op == code)
            found[name] = found.get(name, 0) + int((end - start)[mine].sum())
    return {name: ns for name, ns in found.items() if ns}
