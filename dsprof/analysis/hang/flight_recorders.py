"""Who keeps whom waiting: dumps of flight recorders, compared group by group.

The n-th collective of a group on one rank belongs to the n-th on every other. Sends and receives
are numbered on each rank by itself, so nothing is concluded from them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dsprof.analysis.aggregates.flight_recorders import DumpedRank, FlightRecorders
from dsprof.analysis.group_calls import Call, RankFlight
from dsprof.trace.collectives import POINT_TO_POINT, SYNCHRONISING, family, is_rooted

_HARMLESS = frozenset({"root", "reduce op"})
"""Libraries do not compare these: such a call may end, with wrong values."""
_UNCOMPARED = frozenset({"coalesced", ""})
_LEAST_COMPLETED = 10
"""A rank cannot enqueue so many collectives before the first of them begins on all ranks."""


@dataclass(frozen=True, slots=True)
class GroupState:
    """Where a group stands; `seq` is the number of its first collective that cannot end.

    `absent` ranks have not called it, `waiting` ones have. `unfinished` ranks have not ended
    `unfinished_by` collectives that another rank has. `unknown` ranks left no dump. Of a trace it
    is known how long the first of the waiting ranks waited, and whose wait ended in an exception.
    """

    name: str
    label: str
    members: tuple[int, ...]
    in_flight: int  # collectives that some rank has not ended
    p2p_in_flight: int  # sends and receives
    seq: int = -1
    call: Call | None = None
    waiting: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    unfinished: tuple[int, ...] = ()
    unfinished_by: int = 0
    waited_ns: int = 0
    failed: tuple[int, ...] = ()
    calls: Mapping[int, Call] = field(default_factory=dict)  # by rank

    @property
    def since_ns(self) -> int:
        """When the first rank called it."""
        return self.call.created_ns if self.call else 0

    @property
    def held_up(self) -> tuple[int, ...]:
        """The ranks that wait for others: those whose own device has not ended it do not."""
        return tuple(rank for rank in self.waiting if rank not in self.unfinished)

    @property
    def is_pair(self) -> bool:
        """Whether the call is a send or a receive; only traces match those."""
        return self.call is not None and self.call.op in POINT_TO_POINT


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A collective that ranks called in different ways; `odd` are those that differ from most."""

    name: str
    label: str
    seq: int
    what: str  # "operation", "root", "size", "dtype", "reduce op" or "order"
    values: tuple[tuple[str, tuple[int, ...]], ...]
    odd: tuple[int, ...]  # empty where no value is that of most
    frames: dict[int, str]
    is_of_zero3: bool = False  # on some rank
    calls: Mapping[int, Call] = field(default_factory=dict)  # by rank
    is_sure: bool = True
    before: Call | None = None  # the call before it, which is the last that all have in common
    is_of_threads: bool = False  # that share the group, on some rank

    @property
    def blocks(self) -> bool:
        """Whether ranks may wait because of it; one whose values only are wrong may have ended."""
        calls = self.calls.values()
        is_over = not any(call.is_in_flight or call.has_failed for call in calls)
        return not (is_over and self.what in _HARMLESS)

    @property
    def is_of_lines(self) -> bool:
        """Whether each value comes from other lines: the ranks are at different calls."""
        lines = [{self.frames.get(rank, "") for rank in ranks} for _, ranks in self.values]
        apart = set().union(*lines)
        return "" not in apart and len(apart) == sum(map(len, lines))

    @property
    def waiting(self) -> tuple[int, ...]:
        """Return the ranks that wait for those that differ."""
        return tuple(sorted(set(self.calls) - {*self.odd})) if self.blocks else ()

    @property
    def waited_ns(self) -> int | None:
        """Return how long, None if unknown."""
        calls = self.calls.values() if self.blocks else ()
        return max((call.in_flight_ns for call in calls), default=0) or None


@dataclass(frozen=True, slots=True)
class Apart:
    """Proof that dumps are of different moments.

    Rank `ahead` has completed `op` number `seq`, which rank `behind` had not called. By their
    newest calls, the dump of `older` is older than the other by `by_ns`; 0 if unknown.
    """

    label: str
    seq: int
    op: str
    ahead: int
    behind: int
    older: int
    by_ns: int


def of_earlier_starts(flights: FlightRecorders) -> dict[int, int]:
    """Return the ranks whose dumps an earlier start of the job left, each with a rank of a later.

    torch names a dump only by its rank: a rank that dies without one leaves that of an earlier
    start. Such a rank has completed collectives of a group before another rank called its first.
    """
    return {
        rank: later
        for rank, dump in flights.ranks.items()
        for name, view in dump.groups.items()
        if view.completed >= _LEAST_COMPLETED
        for later in _began_later(flights, name, dump)
    }


def _began_later(flights: FlightRecorders, name: str, dump: DumpedRank) -> Iterator[int]:
    for rank in dump.members[name]:
        other = flights.ranks.get(rank)
        if other is not None and other.began_ns.get(name, 0) > dump.last_ns:
            yield rank
            return


def dumped_apart(flights: FlightRecorders) -> Apart | None:
    """Return a proof that ranks were not dumped at the same moment; None if there is none."""
    for name, members in _members(flights).items():
        views = _views(flights, name, members)
        known = [rank for rank, view in views.items() if view.enqueued >= 0]
        behind = min(known, key=lambda rank: views[rank].enqueued, default=-1)
        completed = (
            (seq, rank, call.op)
            for rank, view in views.items()
            for seq, call in view.calls.items()
            if call.is_completed and family(call.op) in SYNCHRONISING
        )
        seq, ahead, op = max(completed, default=(-1, -1, ""))
        if known and seq > views[behind].enqueued:
            older, by_ns = _older(flights, behind, ahead)
            return Apart(_label(flights, name), seq, op, ahead, behind, older, by_ns)
    return None


def _older(flights: FlightRecorders, one: int, other: int) -> tuple[int, int]:
    """Return which of two dumps has the older newest call, and by how much; 0 if one has none."""
    older, newer = sorted((one, other), key=lambda rank: flights.ranks[rank].last_ns)
    since_ns = flights.ranks[older].last_ns
    return older, flights.ranks[newer].last_ns - since_ns if since_ns else 0


def group_states(flights: FlightRecorders) -> list[GroupState]:
    """Return the state of every group, those first that began to wait first."""
    states = [_state(flights, name, members) for name, members in _members(flights).items()]
    return sorted(states, key=lambda state: state.call.created_ns if state.call else 1 << 63)


def mismatches(flights: FlightRecorders) -> Iterator[Mismatch]:
    """Yield the first mismatch of each group."""
    for name, members in _members(flights).items():
        views = _views(flights, name, members)
        for seq in sorted({seq for view in views.values() for seq in view.calls}):
            calls = {rank: v.calls[seq] for rank, v in views.items() if seq in v.calls}
            found = _mismatch(calls)
            is_sure = found is not None
            if found is None and len(calls) == len(members):
                found = _odd_size(calls)
            if found is not None:
                what, values = found
                odd = odd_ranks(values)
                yield Mismatch(
                    name=name,
                    label=_label(flights, name),
                    seq=seq,
                    what="order" if _are_swapped(views, seq, odd) else what,
                    values=values,
                    odd=odd,
                    frames={rank: call.frame for rank, call in calls.items() if call.frame},
                    is_of_zero3=any(call.is_of_zero3 for call in calls.values()),
                    calls=calls,
                    is_sure=is_sure,
                    before=_shared(views, seq - 1),
                )
                break


def _shared(views: Mapping[int, RankFlight], seq: int) -> Call | None:
    return next((view.calls[seq] for view in views.values() if seq in view.calls), None)


def _members(flights: FlightRecorders) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each group; gloo's dumps do not say them."""
    told: dict[str, tuple[int, ...]] = {}
    seen: defaultdict[str, set[int]] = defaultdict(set)
    for rank, dump in flights.ranks.items():
        for name, members in dump.members.items():
            told[name] = told.get(name) or members
            seen[name].add(rank)
            if not members and dump.labels[name] == "default_pg":
                seen[name].update(range(dump.world_size))
    return {name: members or tuple(sorted(seen[name])) for name, members in told.items()}


def _views(flights: FlightRecorders, name: str, members: Iterable[int]) -> dict[int, RankFlight]:
    nothing = RankFlight(-1, -1, {}, ())
    dumped = {rank: flights.ranks[rank] for rank in members if rank in flights.ranks}
    return {rank: dump.groups.get(name, nothing) for rank, dump in dumped.items()}


def _label(flights: FlightRecorders, name: str) -> str:
    return next((d.labels[name] for d in flights.ranks.values() if d.labels.get(name)), name)


def _state(flights: FlightRecorders, name: str, members: tuple[int, ...]) -> GroupState:
    views = _views(flights, name, members)
    lagging, by = _unfinished(views)
    seq = _first_stuck(views)
    if lagging and all(call.until_ns for view in views.values() for call in view.calls.values()):
        # Who waits on the host for one that another rank has ended cannot come to the next one.
        seq = min(seq for rank in lagging for seq in views[rank].in_flight)
    calls = {rank: view.calls[seq] for rank, view in views.items() if seq in view.calls}
    waiting = tuple(
        rank for rank, view in views.items() if view.enqueued >= seq > view.completed and seq >= 0
    )
    return GroupState(
        name=name,
        label=_label(flights, name),
        members=members,
        in_flight=len({seq for view in views.values() for seq in view.in_flight}),
        p2p_in_flight=sum(len(view.p2p_in_flight) for view in views.values()),
        seq=seq,
        call=min(calls.values(), key=lambda call: call.created_ns, default=None),
        waiting=waiting,
        absent=tuple(rank for rank, view in views.items() if waiting and view.enqueued < seq),
        unknown=tuple(rank for rank in members if rank not in views),
        unfinished=lagging,
        unfinished_by=by,
        waited_ns=max((calls[rank].in_flight_ns for rank in waiting if rank in calls), default=0),
        failed=tuple(rank for rank in waiting if rank in calls and calls[rank].has_failed),
        calls=calls,
    )


def _first_stuck(views: Mapping[int, RankFlight]) -> int:
    """Return the first collective that lacks a rank, else the first that no rank has ended."""
    if not views:
        return -1
    least = min(view.enqueued for view in views.values())
    lacking = [seq for view in views.values() for seq in view.in_flight if seq > least]
    lacking += [v.enqueued for v in views.values() if not v.in_flight and v.enqueued > least]
    if lacking and any(view.calls for view in views.values()):
        return max(min(lacking), least + 1) if least >= 0 else min(lacking)
    stuck = [seq for view in views.values() for seq in view.in_flight]
    return min(stuck, default=-1)


def _unfinished(views: Mapping[int, RankFlight]) -> tuple[tuple[int, ...], int]:
    """Return the ranks that have not ended what another has, and how many collectives at most."""
    furthest = max((view.completed for view in views.values()), default=-1)
    behind = {
        rank: sum(seq <= furthest and not is_rooted(view.calls[seq].op) for seq in view.in_flight)
        for rank, view in views.items()
    }
    lagging = {rank: count for rank, count in behind.items() if count}
    return tuple(sorted(lagging)), max(lagging.values(), default=0)


_Values = tuple[tuple[str, tuple[int, ...]], ...]


def _mismatch(calls: Mapping[int, Call]) -> tuple[str, _Values] | None:
    """Compare the calls of one number: operations, roots, types, reductions, then sizes."""
    if any(call.op in _UNCOMPARED for call in calls.values()):
        return None
    told = {
        "operation": {rank: call.op for rank, call in calls.items()},
        "root": {rank: str(call.peer) for rank, call in calls.items() if call.peer >= 0},
        "dtype": {rank: call.dtype for rank, call in calls.items() if call.dtype},
        "reduce op": {rank: call.reduce_op for rank, call in calls.items() if call.reduce_op},
    }
    if all(call.is_even for call in calls.values()):
        told["size"] = {rank: _elements(call) for rank, call in calls.items()}
    values = ((what, by_value(of_ranks)) for what, of_ranks in told.items())
    return next(((what, those) for what, those in values if len(those) > 1), None)


def _odd_size(calls: Mapping[int, Call]) -> tuple[str, _Values] | None:
    """Compare sizes that may differ, in a call that no rank has ended: one is not that of all."""
    values = by_value({rank: _elements(call) for rank, call in calls.items()})
    is_stuck = all(call.is_in_flight for call in calls.values())
    is_odd = len(values) == 2 and len(values[1][1]) == 1 < len(values[0][1])
    return ("size", values) if is_stuck and is_odd else None


def _are_swapped(views: Mapping[int, RankFlight], seq: int, odd: tuple[int, ...]) -> bool:
    """Say whether odd ranks called two collectives in the other order than the rest."""
    usual = next((view.calls for rank, view in views.items() if rank not in odd), {})
    others = [views[rank].calls for rank in odd]
    return bool(others) and all(
        seq in those
        and seq + 1 in those
        and seq + 1 in usual
        and seq in usual
        and (_kind(those[seq]), _kind(those[seq + 1])) == (_kind(usual[seq + 1]), _kind(usual[seq]))
        for those in others
    )


def _kind(call: Call) -> tuple[str, str, tuple[int, int]]:
    return call.op, call.dtype, call.elements


def _elements(call: Call) -> str:
    given, taken = call.elements
    return f"{given:,} elements" if given == taken else f"{given:,} to {taken:,} elements"


def by_value(values: Mapping[int, str]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return the ranks of each value, those of most ranks first."""
    ranks: defaultdict[str, list[int]] = defaultdict(list)
    for rank in sorted(values):
        ranks[values[rank]].append(rank)
    ordered = sorted(ranks.items(), key=lambda item: (-len(item[1]), item[1]))
    return tuple((value, tuple(those)) for value, those in ordered)


def odd_ranks(values: tuple[tuple[str, tuple[int, ...]], ...]) -> tuple[int, ...]:
    """Return the ranks that differ from most; none where no value is that of most."""
    most, *others = values
    if len(most[1]) <= max(len(ranks) for _, ranks in others):
        return ()
    return tuple(sorted(rank for _, ranks in others for rank in ranks))
