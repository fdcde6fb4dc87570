"""Collectives of measured steps, grouped by what they are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from operator import or_
from typing import Any, NamedTuple

import numpy as np

from dsprof.analysis.collectives import SIZE_CLASSES, SIZE_EDGES_BYTES, SIZE_NOT_KNOWN, busbw_factor
from dsprof.analysis.rank.blocked_time import BlockedTime, blocked_sums
from dsprof.analysis.rank.group_by import Groups, group_rows
from dsprof.analysis.rank.intervals import Array, completion
from dsprof.analysis.rank.isolated_transfers import TIGHTNESS
from dsprof.analysis.rank.steps import in_steps, is_timed, measured_steps, on_host_clock
from dsprof.analysis.summary import Aggregate, RankClock, add_rows, joined_by
from dsprof.trace.collectives import family
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import ROLES, CounterRow, Group

_SITES_KEPT = 64
_GROUPS_KEPT = 4
_LARGEST_NAMED = 8
"""Groups of more ranks are described by their size only."""


class Kind(NamedTuple):
    """Collectives of one row have this in common."""

    op: str
    requested: str
    group: str
    group_size: int
    phase: str
    size_class: str
    dtype: str
    is_async: bool
    on_wire: bool
    role: str = ""  # what the group is for, a key of ROLES


Sites = tuple[tuple[str, int], ...]
"""Call sites and how often each called, the commonest first."""

Members = tuple[tuple[int, ...], ...]
"""Ranks of some of the groups, where these are small."""


def _joined_sites(one: Sites, other: Sites) -> Sites:
    sites = Counter(dict(one))
    sites.update(dict(other))
    return _kept(sites)


def _joined_members(one: Members, other: Members) -> Members:
    return tuple(sorted({*one, *other})[:_GROUPS_KEPT])


@dataclass(frozen=True, slots=True)
class Row(BlockedTime):
    """Sums over ranks and measured steps; None: not measurable here.

    A record without steps is taken whole, and counts as one.
    """

    in_flight_ns: int | None = None  # calls of one rank in flight at the same time count once
    timed_bytes: int = 0  # of the calls whose completion is known well enough for a speed
    timed_ns: int = 0  # in flight, of the same calls
    sites: Sites = field(default=(), metadata=joined_by(_joined_sites))
    members: Members = field(default=(), metadata=joined_by(_joined_members))
    ranks: int = field(default=0, metadata=joined_by(or_))  # those that took part, a bit each

    @property
    def algbw(self) -> float | None:
        """Bytes per second in flight; None where completion is known only loosely."""
        return self.timed_bytes / self.timed_ns * 1e9 if self.timed_ns else None

    def busbw(self, kind: Kind) -> float | None:
        """Bytes per second that the links of the group carried, comparable between collectives."""
        factor = busbw_factor(kind.op, kind.group_size)
        return None if factor is None or self.algbw is None else self.algbw * factor


@dataclass(frozen=True)
class Communication(Aggregate):
    """Rows by kind: of measured steps, else of whole records."""

    rows: dict[Kind, Row]
    is_of_steps: bool

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> Communication:
        """Group the collectives of one rank, and its counters."""
        steps = measured_steps(trace)
        rows = _from_columns(trace, steps)
        _add_counters(rows, trace, steps)
        rows = {kind: replace(row, ranks=1 << trace.rank) for kind, row in rows.items()}
        return cls(rows, is_of_steps=len(steps) > 0)

    def merge(self, other: Communication) -> Communication:
        """Add up rows; a record without steps is no step beside ranks that have some."""
        if self.is_of_steps != other.is_of_steps:
            return self if self.is_of_steps else other
        return Communication(add_rows(self.rows, other.rows), self.is_of_steps)

    @property
    def is_unsized(self) -> bool:
        """Whether collectives are there, and of none is known how much it sent."""
        sizes = {k.size_class for k in self.rows if k.on_wire and family(k.op) != "barrier"}
        return sizes == {SIZE_NOT_KNOWN}

    @property
    def is_ungrouped(self) -> bool:
        """Whether of some collective on the wire it is not known how many ranks it joins."""
        return any(kind.on_wire and not kind.group_size for kind in self.rows)


def _from_columns(trace: RankTrace, steps: Array) -> dict[Kind, Row]:
    table = trace.collectives
    whole = not trace.steps
    chosen = np.flatnonzero(in_steps(table.step, steps) | whole)
    if not len(chosen):
        return {}
    columns = [getattr(table, name)[chosen] for name in _KEYS]
    groups = group_rows([*columns, _size_class(table.nbytes[chosen])])
    held = blocked_sums(trace, chosen, groups, 1 if whole else len(steps), Row)
    flights, sites = _in_flight(trace, chosen, groups), _sites(trace, chosen, groups)
    rows: dict[Kind, Row] = {}
    for g, (first, row) in enumerate(zip(groups.first, held, strict=True)):
        index = int(chosen[first])
        in_flight_ns, timed_bytes, timed_ns = (int(column[g]) for column in flights)
        row = replace(
            row,
            in_flight_ns=in_flight_ns or None,
            timed_bytes=timed_bytes,
            timed_ns=timed_ns if timed_bytes else 0,
            sites=sites[g],
            members=_members(trace.groups.get(int(table.group[index]))),
        )
        _put(rows, _kind(trace, index), row)
    return rows


_KEYS = ("op", "requested", "dtype", "phase", "group", "is_async", "on_wire")


def _kind(trace: RankTrace, index: int) -> Kind:
    table = trace.collectives
    codes = (table.op, table.requested, table.phase, table.dtype)
    op, requested, phase, dtype = (table.words[column[index]] for column in codes)
    requested = _in_its_direction(op, requested)
    label, size, role = _group(trace.groups.get(int(table.group[index])))
    size_name = SIZE_CLASSES[_size_class(table.nbytes[index])]
    if not table.tensors[index] and family(op) != "barrier":
        size_name = SIZE_NOT_KNOWN
    manner = bool(table.is_async[index]), bool(table.on_wire[index])
    return Kind(op, requested, label, size, phase, size_name, dtype, *manner, role)


_DIRECTIONS = {"send": " from ", "recv": " to "}


def _in_its_direction(op: str, requested: str) -> str:
    """Return what one transfer is for, of a batch of sends and receives between stages."""
    direction = _DIRECTIONS.get(family(op))
    parts = requested.split(", ") if direction else []
    return ", ".join(part for part in parts if direction and direction in part) or requested


def _in_flight(trace: RankTrace, chosen: Array, groups: Groups) -> tuple[Array, Array, Array]:
    """Return the time in flight of each group, and bytes and time of what gives a speed.

    All are 0 where ends are not known.
    """
    table = trace.collectives
    if not (is_timed(trace) or trace.device is not None or trace.knows_durations):
        unknown = np.zeros(len(groups), np.int64)
        return unknown, unknown, unknown
    issue = table.issue_ns[chosen].astype(np.int64)
    earliest, done = (bound[chosen] for bound in completion(table))
    tight = (done > 0) & ((done - earliest) * TIGHTNESS <= done - issue)
    del earliest  # a million rows take eight megabytes a column
    timed_bytes = groups.sums(np.where(tight, table.nbytes[chosen], 0))
    in_flight_ns = groups.unions(issue, done)
    if tight.all():
        return in_flight_ns, timed_bytes, in_flight_ns
    return in_flight_ns, timed_bytes, groups.unions(issue, np.where(tight, done, issue))


def _put(rows: dict[Kind, Row], kind: Kind, row: Row) -> None:
    """Add a row of one rank, which takes part once however many of its rows agree."""
    rows[kind] = rows[kind].beside(row) if kind in rows else row


def _add_counters(rows: dict[Kind, Row], trace: RankTrace, steps: Array) -> None:
    wanted = set(steps.tolist())
    clocked = on_host_clock(trace)
    for counters in trace.counters:
        if counters.step in wanted:
            for row in counters.rows:
                blocked_ns = row.blocked_ns if clocked else None
                group = trace.groups.get(row.group)
                least = None if blocked_ns is None else blocked_ns / len(steps)
                sums = Row(row.calls, row.nbytes, len(steps), blocked_ns, least)
                sums = replace(sums, members=_members(group))
                _put(rows, _counted_kind(row, group), sums)


def _counted_kind(row: CounterRow, group: Group | None) -> Kind:
    """Return the kind of counted collectives; their size class is that of their mean size."""
    label, size, role = _group(group)
    size_name = SIZE_CLASSES[_size_class(row.nbytes // max(row.calls, 1))]
    args = (row.op, row.requested, label, size, row.phase, size_name, row.dtype)
    return Kind(*args, is_async=row.is_async, on_wire=row.on_wire, role=role)


def _size_class(nbytes: Any) -> Any:
    return np.searchsorted(SIZE_EDGES_BYTES, nbytes, "right")


def _group(group: Group | None) -> tuple[str, int, str]:
    """Return label, size and role; sibling groups that have a role and no name are alike."""
    if group is None:
        return "unknown", 0, ""
    is_numbered = group.label == f"group {group.name}"
    label = ROLES.get(group.role, group.label) if is_numbered else group.label
    return label, group.size, group.role


def _members(group: Group | None) -> Members:
    return (tuple(group.ranks),) if group is not None and 0 < group.size <= _LARGEST_NAMED else ()


def _sites(trace: RankTrace, chosen: Array, groups: Groups) -> list[Sites]:
    """Return the most frequent call site of each group of rows."""
    pairs = group_rows([groups.of_row, trace.collectives.site[chosen]])
    found: list[Counter[str]] = [Counter() for _ in range(len(groups))]
    for first, count in zip(pairs.first, pairs.counts(), strict=True):
        site = trace.sites.get(int(trace.collectives.site[chosen[first]]))
        if site is not None:
            found[groups.of_row[first]][f"{site.file}:{site.line}"] += int(count)
    return [_kept(counter) for counter in found]


def _kept(sites: Counter[str]) -> Sites:
    """Return the commonest first, of the first by name: a cut that no order of merges changes."""
    named = sorted(sites.items())[:_SITES_KEPT]
    return tuple(sorted(named, key=lambda item: (-item[1], item[0])))
