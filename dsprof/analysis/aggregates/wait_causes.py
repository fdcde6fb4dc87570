"""Causes of waits: which bucket, module or line, and how long before it was started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dsprof.analysis.rank.blocked_time import BlockedTime, between_ranks, blocked_sums
from dsprof.analysis.rank.group_by import group_rows
from dsprof.analysis.rank.intervals import Array, completed
from dsprof.analysis.rank.steps import detailed_steps, places
from dsprof.analysis.summary import Aggregate, RankClock, Sums
from dsprof.trace.collectives import family
from dsprof.trace.columns import BoolArray, IntArray
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Fetch, Flush

_CAUSE = {"full": "a full bucket", "end of backward": "the last bucket of a backward"}
GATHERED_WHEN_NEEDED, GATHERED_AHEAD = "gathered on demand", "prefetched"
_KIND = {"fetch": GATHERED_WHEN_NEEDED, "prefetch": GATHERED_AHEAD}


class Label(NamedTuple):
    """On whose behalf a collective was issued."""

    library: str  # "DDP", "FSDP2"...; "" for DeepSpeed, or where no library is behind it
    purpose: str  # "gradients", "parameters" or "other"
    name: str  # of a bucket or module; how a parameter came to be gathered; else the call site


class Awaited(NamedTuple):
    """The cause of a wait: a `Label`, and how it was sent."""

    library: str
    purpose: str
    name: str
    family: str
    phase: str
    is_async: bool


@dataclass(frozen=True, slots=True)
class Await(Sums):
    """Sums over ranks and measured steps."""

    blocked: BlockedTime
    waited: int  # asynchronous calls that were waited for: of several, maybe only the last
    lead_ns: int  # from the start of these to the wait: time that could hide them
    ended: int  # calls whose end was seen
    in_flight_ns: int  # from start to end of these, at most

    @property
    def lead_ms(self) -> float:
        """Mean of a call that was waited for; 0 if none was."""
        return self.lead_ns / max(self.waited, 1) / 1e6

    @property
    def in_flight_ms(self) -> float:
        """Mean of a call whose end was seen; 0 if none was."""
        return self.in_flight_ns / max(self.ended, 1) / 1e6


@dataclass(frozen=True, slots=True)
class WaitCauses(Aggregate):
    """Sums by what was waited for, of groups of two or more ranks."""

    rows: dict[Awaited, Await]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> WaitCauses:
        """Sort the collectives of one rank by what they were for."""
        table, steps = trace.collectives, detailed_steps(trace)
        chosen = between_ranks(trace, steps)
        label, names = _labels(trace)
        columns: list[IntArray | BoolArray] = [label, table.op, table.phase, table.is_async]
        groups = group_rows([column[chosen] for column in columns])
        sums = [groups.sums(column[chosen]).tolist() for column in _times(trace)]
        rows: dict[Awaited, Await] = {}
        for g, blocked in enumerate(blocked_sums(trace, chosen, groups, len(steps), BlockedTime)):
            index = int(chosen[groups.first[g]])
            how = family(table.words[table.op[index]]), table.words[table.phase[index]]
            what = Awaited._make((*names[int(label[index])], *how, bool(table.is_async[index])))
            one = Await(blocked, *(int(column[g]) for column in sums))
            rows[what] = _beside(rows[what], one) if what in rows else one
        return cls(rows)

    def longest(self, most: int) -> list[tuple[Awaited, Await]]:
        """Return what held the ranks longest, at most so many."""
        timed = ((what, sums) for what, sums in self.rows.items() if sums.blocked.exposed_ns)
        return sorted(timed, key=lambda item: (-(item[1].blocked.exposed_ns or 0), item[0]))[:most]


def _times(trace: RankTrace) -> tuple[Array, Array, Array, Array]:
    """Return for each collective whether it was waited for, how long it had before, and in flight.

    The third says whether its end was seen.
    """
    rows = trace.collectives
    issue = rows.issue_ns.astype(np.int64)
    waited = rows.is_async & (rows.wait_ns > 0)
    lead = np.where(waited, np.maximum(rows.wait_ns - issue, 0), 0)
    done = completed(rows)
    in_flight = np.where(done > 0, np.maximum(done - issue, 0), 0)
    return waited.astype(np.int64), lead, (done > 0).astype(np.int64), in_flight


def _labels(trace: RankTrace) -> tuple[Array, list[Label]]:
    """Return the labels, and which of them each collective has: its flush's, fetch's, or site's."""
    rows, codes = trace.collectives, dict[Label, int]()
    sites = {n: Label("", "other", f"{site.file}:{site.line}") for n, site in trace.sites.items()}
    fetches = {one.id: _fetched(one) for one in trace.fetches if one.kind != "release"}
    flushes = {one.id: _flushed(one) for one in trace.flushes}
    site = _coded(rows.site, sites, codes, Label("", "other", ""))
    fetch = _coded(rows.fetch, fetches, codes, Label("", "parameters", ""))
    flush = _coded(rows.flush, flushes, codes, Label("", "gradients", ""))
    chosen = np.where(rows.flush > 0, flush, np.where(rows.fetch > 0, fetch, site))
    return chosen.astype(np.int64), list(codes)


def _coded(
    ids: IntArray, labels: Mapping[int, Label], codes: dict[Label, int], unknown: Label
) -> Array:
    """Return the code of the label of each id; that of `unknown` where it has none."""
    numbers = np.array(sorted(labels), np.int64)
    known = [codes.setdefault(labels[number], len(codes)) for number in sorted(labels)]
    place, found = places(ids, numbers)
    other = codes.setdefault(unknown, len(codes))
    return np.where(found, np.array([*known, other], np.int64)[place], other)


def _flushed(flush: Flush) -> Label:
    name = flush.module or _CAUSE.get(flush.cause, flush.cause)
    return Label(
        flush.library, "gradients", f"bucket {flush.bucket}" if flush.bucket >= 0 else name
    )


def _fetched(fetch: Fetch) -> Label:
    name = _KIND.get(fetch.kind, fetch.kind)
    return Label(fetch.library, "parameters", f"{fetch.module}, {name}" if fetch.module else name)


def _beside(one: Await, other: Await) -> Await:
    return replace(one + other, blocked=one.blocked.beside(other.blocked))
