"""The start of a run, until the first step ended: who came last to its collectives, and how late.

The first step is part of it: without an engine nothing tells where it begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dsprof.analysis.rank.record_columns import step_columns
from dsprof.analysis.summary import Aggregate, RankClock, add_rows
from dsprof.trace.collectives import SYNCHRONISING, family
from dsprof.trace.rank_trace import RankTrace

CALLS = 64
"""This many synchronising collectives of a rank are compared, the first ones of all ranks."""

_MOST_LATE = 16
"""This many ranks are kept of each collective, the latest ones: a run may have thousands."""


@dataclass(frozen=True, slots=True)
class Entry:
    """When ranks entered a collective; times in ns of the run's time line."""

    op: str
    ranks: int
    first_ns: int
    latest: tuple[tuple[int, int], ...]  # time and rank, ascending

    def __add__(self, other: Entry) -> Entry:
        return Entry(
            max(self.op, other.op),
            self.ranks + other.ranks,
            min(self.first_ns, other.first_ns),
            tuple(sorted(self.latest + other.latest)[-_MOST_LATE:]),
        )

    @property
    def late_by_ns(self) -> int:
        """By how much the last rank entered after the first one."""
        return self.latest[-1][0] - self.first_ns

    @property
    def late(self) -> tuple[int, ...]:
        """The ranks that entered in the later half of that time, as far as they are kept."""
        half_ns = self.first_ns + self.late_by_ns / 2
        return tuple(sorted(rank for ns, rank in self.latest if ns > half_ns))

    @property
    def may_have_more_late(self) -> bool:
        """Whether more ranks than those that are kept may have been late."""
        return len(self.late) == len(self.latest) < self.ranks


Call = tuple[str, str, int]
"""A collective of a group of all ranks: key and label of the group, and number in it."""


@dataclass(frozen=True, slots=True)
class StartUp(Aggregate):
    """The start on the ranks that dsprof recorded."""

    ranks: int
    began_ns: int  # the first recording
    ended: int  # ranks that recorded step 0
    ended_ns: int  # the last of these
    bound_ns: int | None  # largest error of a clock; None: one cannot be compared
    entries: dict[Call, Entry]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> StartUp:
        if trace.is_foreign:
            return cls(0, 0, 0, 0, 0, {})
        steps = step_columns(trace)
        first = np.flatnonzero(steps.number == 0)
        ended_ns = int(clock.on_run(steps.end_ns[first])[0]) if len(first) else 0
        entries = dict(_entries(trace, clock))
        return cls(1, clock.offset_ns, int(len(first) > 0), ended_ns, clock.bound_ns, entries)

    def merge(self, other: StartUp) -> StartUp:
        if not (self.ranks and other.ranks):
            return self if self.ranks else other
        bounds = (self.bound_ns, other.bound_ns)
        last = (one.ended_ns for one in (self, other) if one.ended)
        return StartUp(
            self.ranks + other.ranks,
            min(self.began_ns, other.began_ns),
            self.ended + other.ended,
            max(last, default=0),
            None if None in bounds else max(bound for bound in bounds if bound is not None),
            add_rows(self.entries, other.entries),
        )

    @property
    def length_ns(self) -> int | None:
        """Time from the first record of a rank to the end of its first step on the last rank."""
        return self.ended_ns - self.began_ns if self.ranks and self.ended == self.ranks else None

    @property
    def latest_entry(self) -> tuple[Call, Entry] | None:
        """The collective to which ranks came furthest apart; None if clocks do not tell."""
        if self.bound_ns is None or not self.entries:
            return None
        call = max(self.entries, key=lambda one: (self.entries[one].late_by_ns, one))
        entry = self.entries[call]
        return (call, entry) if entry.late_by_ns > 2 * self.bound_ns else None


def _entries(trace: RankTrace, clock: RankClock) -> Iterator[tuple[Call, Entry]]:
    rows = trace.collectives
    of_all = [n for n, group in trace.groups.items() if group.size == trace.header.world_size]
    mine = rows.of_families(SYNCHRONISING) & np.isin(rows.group, of_all) & (rows.step <= 0)
    chosen = np.flatnonzero(mine & rows.on_wire & ~rows.captured)
    chosen = chosen[np.argsort(rows.issue_ns[chosen], kind="stable")][:CALLS]
    issued_ns = clock.on_run(rows.issue_ns[chosen]).tolist()
    for row, issue_ns in zip(chosen.tolist(), issued_ns, strict=True):
        group, op = trace.groups[int(rows.group[row])], family(rows.words[rows.op[row]])
        entry = Entry(op, 1, issue_ns, ((issue_ns, trace.rank),))
        yield (group.key, group.label, int(rows.seq[row])), entry
