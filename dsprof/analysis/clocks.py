"""One time line for all ranks, and how far it can be trusted.

Ranks of one host and boot read the same monotonic clock. Hosts are tied by collectives that no
rank leaves before every rank has entered: if rank i arrived at a_i and left at e_i on its own
clock, then `a_i - e_j <= o_j - o_i <= e_i - a_j` for the offsets o of i and j.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsprof.analysis.collectives import SYNCHRONISING, family
from dsprof.analysis.steps import HOST, on_host_clock
from dsprof.analysis.summary import RankClock
from dsprof.analysis.timeline import completion
from dsprof.trace.format import Header
from dsprof.trace.table import RankTrace

SAMPLES_PER_GROUP = 512

Node = tuple[str, str]  # host and boot
Key = tuple[str, int]  # process group and number of the collective in it


@dataclass(frozen=True, slots=True)
class Alignment:
    """The clock of each rank; `bound_ns` is the largest bound, None where one is not known."""

    clocks: dict[int, RankClock]
    method: str
    bound_ns: int | None = 0


@dataclass(frozen=True, slots=True)
class ClockSamples:
    """When one rank entered and left synchronising collectives, on its host's monotonic clock."""

    header: Header
    times_ns: Mapping[Key, tuple[int, int]]


def shared_clock(headers: Sequence[Header]) -> Alignment | None:
    """Align ranks that all ran in one boot of one host; None where they did not.

    Ranks of whom no file holds a time line have nothing to align.
    """
    timed = [header for header in headers if header.started_monotonic_ns]
    if not timed:
        return Alignment({h.rank: RankClock() for h in headers}, "no file holds a time line")
    nodes = {_node(header) for header in timed}
    if len(timed) > 1 and (len(nodes) != 1 or not timed[0].boot_id):
        return None
    start = timed[0].started_monotonic_ns
    clocks = {h.rank: RankClock(h.started_monotonic_ns - start) for h in headers}
    method = "one host: shared clock" if len(headers) > 1 else "one rank, one clock"
    return Alignment(clocks, method)


def unread_samples(headers: Sequence[Header]) -> list[ClockSamples] | None:
    """Return the samples of ranks of whom none can have any; None where a file must be read.

    Only collectives on a host's clock give samples: those of devices say when kernels ran.
    """
    if any(header.device == HOST and header.boot_id for header in headers):
        return None
    return [ClockSamples(header, {}) for header in headers]


def clock_samples(trace: RankTrace) -> ClockSamples:
    """Choose at most `SAMPLES_PER_GROUP` synchronising collectives of each group.

    The choice depends on their numbers alone, so that all ranks choose the same.
    """
    rows, start = trace.collectives, trace.header.started_monotonic_ns
    codes = [code for code, word in enumerate(rows.words) if family(word) in SYNCHRONISING]
    _, done = completion(rows)
    usable = np.isin(rows.op, codes) & (done > 0) & on_host_clock(trace) & rows.on_wire
    times: dict[Key, tuple[int, int]] = {}
    for number, group in trace.groups.items():
        mine = np.flatnonzero(usable & (rows.group == number))
        stride = 1 << max(0, math.ceil(math.log2(max(len(mine), 1) / SAMPLES_PER_GROUP)))
        for i in mine[rows.seq[mine] % stride == 0]:
            key = (group.key, int(rows.seq[i]))
            times[key] = (start + int(rows.issue_ns[i]), start + int(done[i]))
    return ClockSamples(trace.header, times)


def align(samples: Iterable[ClockSamples]) -> Alignment:
    """Align ranks of several hosts; hosts that no collective ties are set by their wall clocks."""
    samples = list(samples)
    offsets = _tie_hosts(samples)
    reference = samples[0].header
    clocks: dict[int, RankClock] = {}
    loose: set[str] = set()
    for sample in samples:
        header = sample.header
        if (tied := offsets.get(_node(header))) is not None:
            offset, bound = tied
            begun = header.started_monotonic_ns - reference.started_monotonic_ns
            clocks[header.rank] = RankClock(begun + offset, bound)
        else:
            loose.add(header.host)
            begun = header.started_epoch_ns - reference.started_epoch_ns
            clocks[header.rank] = RankClock(begun, None)
    if loose:
        hosts = ", ".join(sorted(host or "hosts without a name" for host in loose)[:4])
        return Alignment(clocks, f"wall clocks, of unknown error, for {hosts}", None)
    bound = max(clock.bound_ns or 0 for clock in clocks.values())
    return Alignment(clocks, "several hosts: tied by the ends of collectives", bound)


def _node(header: Header) -> Node:
    return header.host, header.boot_id


def _tie_hosts(samples: Sequence[ClockSamples]) -> dict[Node, tuple[int, int]]:
    """Return offset and bound of each host that is tied to the first, directly or by others."""
    hosts: dict[Node, dict[Key, tuple[int, int]]] = {}
    for sample in samples:
        if sample.header.boot_id:
            merged = hosts.setdefault(_node(sample.header), {})
            for key, (arrive, end) in sample.times_ns.items():
                # The last arrival and the first end of a host bind the tightest.
                other = merged.get(key, (arrive, end))
                merged[key] = (max(arrive, other[0]), min(end, other[1]))
    reference = _node(samples[0].header)
    tied = {reference: (0, 0)} if reference in hosts else {}
    frontier = list(tied)
    while frontier:
        known = frontier.pop(0)
        for node in hosts.keys() - tied.keys():
            if (tie := _tie(hosts[known], hosts[node])) is not None:
                tied[node] = (tied[known][0] + tie[0], tied[known][1] + tie[1])
                frontier.append(node)
    return tied


def _tie(
    one: Mapping[Key, tuple[int, int]], other: Mapping[Key, tuple[int, int]]
) -> tuple[int, int] | None:
    """Return the offset of `other` to `one` and its bound, from the collectives that both saw."""
    shared = one.keys() & other.keys()
    if not shared:
        return None
    low = max(one[key][0] - other[key][1] for key in shared)
    high = min(one[key][1] - other[key][0] for key in shared)
    # Clocks that drift leave no single offset that fits all: the gap is then part of the error.
    return (low + high) // 2, abs(high - low + 1) // 2
