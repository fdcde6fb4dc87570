"""Flight recorders of all ranks at the moment of their dumps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod

from dsprof.analysis.group_calls import Call, RankFlight
from dsprof.analysis.summary import Aggregate, RankClock
from dsprof.trace.collectives import is_even
from dsprof.trace.dumps.flight_dump import FlightDump, FlightEntry
from dsprof.trace.rank_trace import RankTrace

CALLS_KEPT = 100
"""This many calls of a group that are no longer in flight are compared, the last ones."""


@dataclass(frozen=True, slots=True)
class DumpedRank:
    """One rank's dump, group by group."""

    world_size: int
    knows_completion: bool
    groups: dict[str, RankFlight]
    labels: dict[str, str]
    members: dict[str, tuple[int, ...]]
    last_frame: str  # where the newest call came from
    began_ns: dict[str, int] = field(default_factory=dict)  # first call of a group, if still held
    last_ns: int = 0  # newest call


@dataclass(frozen=True, slots=True)
class FlightRecorders(Aggregate):
    """The dumps by rank, of the ranks that left one."""

    ranks: dict[int, DumpedRank]

    @classmethod
    def collect(cls, trace: RankTrace, clock: RankClock) -> FlightRecorders:
        if (dump := trace.flight) is None:
            return cls({})
        entries: defaultdict[str, list[FlightEntry]] = defaultdict(list)
        for entry in dump.entries:
            entries[entry.group].append(entry)
        framed = [entry for entry in dump.entries if entry.frame]
        last = max(framed, key=lambda entry: entry.created_ns, default=None)
        rank = DumpedRank(
            world_size=trace.header.world_size,
            knows_completion=dump.knows_completion,
            groups={name: _rank_flight(dump, name, entries[name]) for name in dump.groups},
            labels={name: group.label for name, group in dump.groups.items()},
            members={name: group.ranks for name, group in dump.groups.items()},
            last_frame=last.frame if last else "",
            began_ns={
                entry.group: entry.created_ns
                for entry in dump.entries
                if entry.seq == 1 and not entry.is_p2p
            },
            last_ns=max((entry.created_ns for entry in dump.entries), default=0),
        )
        return cls({trace.rank: rank})


def _rank_flight(dump: FlightDump, name: str, entries: Iterable[FlightEntry]) -> RankFlight:
    group = dump.groups[name]
    p2p = [entry for entry in entries if entry.is_p2p]
    # A group's counters are of what was called last: of sends, they number something else.
    enqueued, completed = (-1, -1) if p2p else (group.last_enqueued, group.last_completed)
    calls: dict[int, Call] = {}
    for entry in entries:
        if not entry.is_p2p:
            call = _call(entry, dump.is_in_flight(entry) and entry.seq > completed)
            calls[entry.seq] = _coalesced(call) if entry.seq in calls else call
    in_flight = [seq for seq, call in calls.items() if call.is_in_flight]
    if completed < 0 and dump.knows_completion and calls:
        completed = min(in_flight) - 1 if in_flight else max(calls)
    ended = sorted(set(calls).difference(in_flight))[-CALLS_KEPT:]
    return RankFlight(
        enqueued=max(enqueued, max(calls, default=-1)),
        completed=completed if dump.knows_completion else -1,
        calls={seq: calls[seq] for seq in (*ended, *in_flight)},
        p2p_in_flight=tuple(filter(dump.is_in_flight, p2p)),
    )


def _call(entry: FlightEntry, is_in_flight: bool) -> Call:
    return Call(
        op=entry.op,
        elements=(sum(map(prod, entry.input_sizes)), sum(map(prod, entry.output_sizes))),
        dtype=entry.dtype,
        created_ns=entry.created_ns,
        is_in_flight=is_in_flight,
        frame=entry.frame,
        is_even=is_even(entry.op),
        is_of_zero3=entry.is_of_zero3,
        is_completed=entry.state == "completed",
        is_started=entry.state == "started",
    )


def _coalesced(call: Call) -> Call:
    """Represent several calls of one number, whose sizes are not compared."""
    return replace(call, op="coalesced", elements=(0, 0), dtype="")
