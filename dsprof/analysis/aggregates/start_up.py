"""The start of a run, until the first step ended: who came last to its collectives, and how late.

The first step is part of it: without an engine nothing tells where it begins.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from dsprof.analysis.per_rank import PerRank
from dsprof.analysis.rank.record_columns import step_columns
from dsprof.analysis.summary import Aggregate, RankClock, greatest
from dsprof.trace.collectives import SYNCHRONISING, family
from dsprof.trace.rank_trace import RankTrace

CALLS = 64
"""This many synchronising collectives of a rank are compared, the first ones."""


@dataclass(frozen=True, slots=True)
class RankStart:
    """The start of one rank; times in ns of the run's time line."""

    began_ns: int  # the recording: its first collective
    ended_ns: int | None  # step 0; None: not recorded
    calls: dict[tuple[str, int], tuple[str, int]]  # (group, number) -> operation, and its call
    bound_ns: int | None  # error of its clock


@dataclass(frozen=True, slots=True)
class LateEntry:
    """The collective of the start that ranks entered furthest apart."""

    op: str
    number: int
    group: str  # label
    late: tuple[int, ...]  # who entered in the later half of that time
    early: tuple[int, ...]
    late_by_ns: int  # the last rank after the first one


@dataclass(frozen=True, slots=True)
class StartUp(Aggregate):
    """The starts of all ranks that dsprof recorded, and the labels of their groups by key."""

    ranks: PerRank[RankStart]
    labels: dict[str, str]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> StartUp:
        """Read the start of one rank."""
        if trace.is_foreign:
            return cls(PerRank(), {})
        steps = step_columns(trace)
        first = np.flatnonzero(steps.number == 0)
        ended_ns = int(clock.on_run(steps.end_ns[first])[0]) if len(first) else None
        start = RankStart(clock.offset_ns, ended_ns, _calls(trace, clock), clock.bound_ns)
        labels = {group.key: group.label for group in trace.groups.values()}
        return cls(PerRank({trace.rank: start}), labels)

    def merge(self, other: StartUp) -> StartUp:
        """Put the ranks side by side; a label is kept once."""
        return StartUp(self.ranks | other.ranks, greatest(self.labels, other.labels))

    @property
    def length_ns(self) -> int | None:
        """Time from the first record of a rank to the end of its first step on the last rank."""
        starts = [*self.ranks.values()]
        ends = [start.ended_ns for start in starts if start.ended_ns is not None]
        if not starts or len(ends) < len(starts):
            return None
        return max(ends) - min(start.began_ns for start in starts)

    @property
    def latest_entry(self) -> LateEntry | None:
        """The collective to which ranks came furthest apart; None if clocks do not tell."""
        entries: defaultdict[tuple[str, int], dict[int, int]] = defaultdict(dict)
        ops: dict[tuple[str, int], str] = {}
        bounds: list[int | None] = []
        for rank, start in self.ranks.items():
            bounds.append(start.bound_ns)
            for key, (op, issue_ns) in start.calls.items():
                entries[key][rank], ops[key] = issue_ns, op
        apart = {key: max(at.values()) - min(at.values()) for key, at in entries.items()}
        doubt_ns = 2 * max((bound or 0 for bound in bounds), default=0)
        if None in bounds or max(apart.values(), default=0) <= doubt_ns:
            return None
        key = max(apart, key=lambda one: apart[one])
        at, late_by_ns = entries[key], apart[key]
        half_ns = min(at.values()) + late_by_ns / 2
        return LateEntry(
            op=ops[key],
            number=key[1],
            group=self.labels[key[0]],
            late=tuple(sorted(rank for rank, ns in at.items() if ns > half_ns)),
            early=tuple(sorted(rank for rank, ns in at.items() if ns <= half_ns)),
            late_by_ns=late_by_ns,
        )


def _calls(trace: RankTrace, clock: RankClock) -> dict[tuple[str, int], tuple[str, int]]:
    rows = trace.collectives
    codes = [code for code, word in enumerate(rows.words) if family(word) in SYNCHRONISING]
    mine = np.isin(rows.op, codes) & rows.on_wire & ~rows.captured & (rows.step <= 0)
    chosen = np.flatnonzero(mine)
    chosen = chosen[np.argsort(rows.issue_ns[chosen], kind="stable")][:CALLS]
    issued_ns = clock.on_run(rows.issue_ns[chosen]).tolist()
    return {
        (group.key, int(rows.seq[row])): (family(rows.words[rows.op[row]]), issue_ns)
        for row, issue_ns in zip(chosen.tolist(), issued_ns, strict=True)
        if (group := trace.groups.get(int(rows.group[row]))) is not None
    }


AGGREGATE = StartUp
