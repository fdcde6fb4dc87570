"""One time line for all ranks, and its error.

Ranks of one host and boot read the same monotonic clock. Hosts are aligned by collectives that no
rank leaves before every rank has entered (`clock_ties`); those of a device by when it ran them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dsprof.analysis.alignment.clock_ties import (
    DRIFT_PER_NS,
    Bounds,
    Seen,
    Tie,
    bounds,
    joined,
    renumbered,
    tie,
)
from dsprof.analysis.rank.device_times import on_device_clock
from dsprof.analysis.rank.intervals import Array, completion
from dsprof.analysis.rank.sampling import sample
from dsprof.analysis.rank.steps import is_timed
from dsprof.analysis.summary import RankClock
from dsprof.trace.collectives import SYNCHRONISING
from dsprof.trace.rank_trace import RankTrace
from dsprof.trace.schema import Header

NO_TIME_LINE = "no file holds a time line"
SAMPLES_PER_GROUP = 512
_EVER_NS = 1 << 62
_PROFILED_PER_GROUP = 4096  # the first: numbers of profiles agree only once they were compared

Node = tuple[str, str]  # host and boot
Groups = dict[str, Seen]  # by the key of the process group


@dataclass(frozen=True, slots=True)
class Alignment:
    """The clock of each rank; `bound_ns` is the largest bound, None where one is not known."""

    clocks: dict[int, RankClock]
    method: str
    bound_ns: int | None = 0


@dataclass(frozen=True, slots=True)
class ClockSamples:
    """Synchronising collectives of one rank, on its host's clock, by the key of their group."""

    header: Header
    seen: Groups
    is_numbered: bool = True  # by the program; else from where a profiler's window begins
    span: tuple[int, int] = (0, 0)  # from its first collective to its last, on its host's clock


def shared_clock(headers: Sequence[Header]) -> Alignment | None:
    """Align ranks that all ran in one boot of one host; None where they did not.

    Ranks of whom no file holds a time line have nothing to align.
    """
    timed = [header for header in headers if header.started_monotonic_ns]
    if not timed:
        return Alignment({h.rank: RankClock() for h in headers}, NO_TIME_LINE)
    nodes = {_node(header) for header in timed}
    if len(timed) > 1 and (len(nodes) != 1 or not timed[0].boot_id):
        return None
    start = timed[0].started_monotonic_ns
    clocks = {h.rank: RankClock(h.started_monotonic_ns - start) for h in headers}
    method = "one host: shared clock" if len(headers) > 1 else "one rank, one clock"
    return Alignment(clocks, method)


def unread_samples(headers: Sequence[Header]) -> list[ClockSamples] | None:
    """Return the samples of ranks of whom none can have any; None where a file must be read."""
    if any(header.started_monotonic_ns and header.boot_id for header in headers):
        return None
    return [ClockSamples(header, {}) for header in headers]


def clock_samples(trace: RankTrace) -> ClockSamples:
    """Choose about `SAMPLES_PER_GROUP` synchronising collectives of each group.

    The choice depends only on their numbers, so that all ranks choose the same. Of a profile,
    whose numbers are its own, the first are taken.
    """
    trace = on_device_clock(trace)
    rows, start = trace.collectives, trace.header.started_monotonic_ns
    earliest, latest = _ends(trace)
    usable = rows.of_families(SYNCHRONISING) & (latest > 0) & rows.on_wire & ~rows.is_untimed
    seen: Groups = {}
    for number, group in trace.groups.items():
        mine = np.flatnonzero(usable & (rows.group == number))
        mine = (
            sample(rows.seq, mine, SAMPLES_PER_GROUP)[0]
            if trace.device is None
            else mine[:_PROFILED_PER_GROUP]
        )
        seq, first, counts = np.unique(rows.seq[mine], return_index=True, return_counts=True)
        once = counts == 1  # a number that comes twice tells nothing
        if once.any():
            mine = mine[first[once]]
            arrive = rows.issue_ns[mine].astype(np.int64)
            seen[group.key] = Seen(
                seq=seq[once].astype(np.int64),
                arrive=start + arrive,
                earliest=start + earliest[mine],
                latest=start + latest[mine] + rows.bound_ns[mine],
                shortest=latest[mine] - arrive,
            )
    begin, end = (rows.issue_ns, latest) if len(rows) else (np.zeros(1), np.zeros(1))
    span = start + int(begin.min()), start + int(end.max())
    return ClockSamples(trace.header, seen, trace.device is None, span)


def merged_samples(one: list[ClockSamples], other: list[ClockSamples]) -> list[ClockSamples]:
    """Join the samples of two disjoint sets of ranks: the first of a host keeps those of all."""
    kept: dict[Node, Groups] = {}
    ranks = []
    for rank in (*one, *other):
        if rank.seen and rank.is_numbered:
            node = _node(rank.header)
            if node in kept:
                _add(kept[node], rank.seen)
                rank = replace(rank, seen={})
            else:  # a copy: Dask may merge the same samples twice
                rank = replace(rank, seen=kept.setdefault(node, dict(rank.seen)))
        ranks.append(rank)
    return ranks


def _ends(trace: RankTrace) -> tuple[Array, Array]:
    """Return between what each collective ended on this rank; 0 where that was not seen.

    What the place of a device on its host's clock leaves open is not in it.

    A host comes back from a collective when it gets a processor, which may be long after: of its
    calls only the latest end is believed.
    """
    rows = trace.collectives
    arrive, none = rows.issue_ns.astype(np.int64), np.zeros(len(rows), np.int64)
    if trace.device is not None:
        ends = none if trace.is_sampled else rows.done_ns.astype(np.int64)
        return ends, ends
    if not is_timed(trace):
        return none, none
    earliest, latest = completion(rows)
    if not trace.is_device_timed:
        return arrive, latest
    return np.where(rows.is_estimated, arrive, earliest), latest


def align(samples: Iterable[ClockSamples]) -> Alignment:
    """Align ranks of several hosts; hosts that no collective ties are set by their wall clocks."""
    headers: list[Header] = []
    spans: dict[Node, tuple[int, int]] = {}
    hosts: dict[Node, Groups] = {}
    first: Groups = {}  # the first rank's of each group: its numbers hold for all
    for rank in samples:
        headers.append(rank.header)
        begin, end = spans.setdefault(_node(rank.header), rank.span)
        spans[_node(rank.header)] = min(begin, rank.span[0]), max(end, rank.span[1])
        if rank.header.boot_id:
            seen = rank.seen if rank.is_numbered else _renumbered(rank.seen, first)
            _add(hosts.setdefault(_node(rank.header), {}), seen)
    ties = _tie_hosts(hosts, _node(headers[0]))
    clocks = {h.rank: _clock(h, headers[0], ties, spans[_node(h)]) for h in headers}
    if loose := {h.host for h in headers if clocks[h.rank].bound_ns is None}:
        names = ", ".join(sorted(host or "hosts without a name" for host in loose)[:4])
        return Alignment(clocks, f"wall clocks of {names}, error unknown", None)
    bound = max(clock.bound_ns or 0 for clock in clocks.values())
    return Alignment(clocks, "several hosts: aligned by the ends of collectives", bound)


def _renumbered(seen: Groups, first: Groups) -> Groups:
    """Return the groups whose numbers are known, with those of the first rank."""
    found: Groups = {}
    for key, mine in seen.items():
        like = first.setdefault(key, mine)
        if (told := mine if like is mine else renumbered(mine, like)) is not None:
            found[key] = told
    return found


def _add(host: Groups, seen: Mapping[str, Seen]) -> None:
    for key, more in seen.items():
        host[key] = joined([host[key], more]) if key in host else more


def _clock(
    header: Header, reference: Header, ties: Mapping[Node, Tie], span: tuple[int, int]
) -> RankClock:
    if (found := ties.get(_node(header))) is None:
        return RankClock(header.started_epoch_ns - reference.started_epoch_ns, None)
    base = int(found.offset[0])
    begun = header.started_monotonic_ns - reference.started_monotonic_ns
    added = (found.offset - base).tolist()
    at = (found.at - header.started_monotonic_ns).tolist()
    drift = tuple(zip(at, added, strict=True)) if any(added) else ()
    return RankClock(begun + base, found.bound_ns + _drift_beyond(found, *span), drift)


def _drift_beyond(found: Tie, begin: int, end: int) -> int:
    """Return how far clocks may run apart before and after what was compared."""
    return max(int(found.at[0]) - begin, end - int(found.at[-1]), 0) // DRIFT_PER_NS


def _node(header: Header) -> Node:
    return header.host, header.boot_id


def _tie_hosts(hosts: Mapping[Node, Groups], reference: Node) -> dict[Node, Tie]:
    """Return how each host is aligned with `reference`, directly or through others."""
    whole: Groups = {}
    for host in hosts.values():
        _add(whole, host)
    itself = Tie(np.array([-_EVER_NS, _EVER_NS]), np.zeros(2, np.int64), 0)
    tied = {reference: itself} if reference in hosts else {}
    frontier = list(tied)
    while frontier:
        known = frontier.pop(0)
        for node in sorted(hosts.keys() - tied.keys()):
            if (found := _bounds(hosts[known], hosts[node], whole)) is not None:
                tied[node] = _through(tied[known], tie(found))
                frontier.append(node)
    return tied


def _bounds(one: Groups, other: Groups, whole: Groups) -> Bounds | None:
    """Return what the collectives that both hosts saw tell; None without any."""
    found = []
    for key in sorted(one.keys() & other.keys()):
        seq, here, there = np.intersect1d(
            one[key].seq, other[key].seq, assume_unique=True, return_indices=True
        )
        shortest = whole[key].shortest[np.searchsorted(whole[key].seq, seq)]
        found.append(bounds(one[key].take(here), other[key].take(there), shortest))
    if not any(len(part.at) for part in found):
        return None
    return Bounds(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def _through(known: Tie, more: Tie) -> Tie:
    """Align a clock with the reference through one that is aligned already."""
    there = more.at + more.offset
    base = int(known.offset[0])
    added = np.rint(np.interp(there, known.at, known.offset - base)).astype(np.int64) + base
    beyond = _drift_beyond(known, int(there.min()), int(there.max()))
    return Tie(more.at, more.offset + added, known.bound_ns + more.bound_ns + beyond)
