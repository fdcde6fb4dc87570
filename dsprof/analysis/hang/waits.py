"""Waits of ranks when their run ended: the ends of traces, compared as dumps are."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dsprof.analysis.aggregates.endings import Endings, GroupNames
from dsprof.analysis.aggregates.flight_recorders import DumpedRank, FlightRecorders
from dsprof.analysis.ending import Ending, PairCall, Symptoms
from dsprof.analysis.group_calls import Call, RankFlight
from dsprof.analysis.hang.flight_recorders import (
    Apart,
    GroupState,
    Mismatch,
    dumped_apart,
    group_states,
    mismatches,
)
from dsprof.trace.collectives import OTHER_SIDE, SYNCHRONISING

_MOST_MISFITS = 0.1
"""Where more calls do not fit in time, it is the numbers that do not."""

LEAST_WAIT_NS = 1_000_000_000
"""Twice what a killed rank has not written yet: a longer wait is no matter of the moment."""

LOST_NS = LEAST_WAIT_NS // 2
"""A killed rank has not written this much of its record."""


@dataclass(frozen=True, slots=True)
class Hang:
    """Calls that could not end: `mismatched` where ranks called different ones, or `stuck_groups`.

    `flights` are dumps, or the ends of traces in their terms. In groups of `unfinished` the device
    of a rank has not ended what that of another has; only dumps tell that. Dumps that are `apart`
    prove nothing. Threads of a rank share the groups of the labels `shared`.
    """

    flights: FlightRecorders
    stuck_groups: tuple[GroupState, ...]
    mismatched: tuple[Mismatch, ...]
    unfinished: tuple[GroupState, ...] = ()
    is_of_dumps: bool = False
    apart: Apart | None = None
    shared: Collection[str] = ()


def find_hang(endings: Endings, least_wait_ns: int) -> Hang:
    """Return what ranks waited in for `least_wait_ns` or longer, or until an exception.

    A shorter wait is no proof: of a run that is killed in good health, each rank wrote up to
    another moment.
    """
    # Only a whole record shows a wait that did not end.
    if not any(one.is_whole for one in endings.ranks.values()) or _ended_well(endings):
        return Hang(FlightRecorders({}), (), ())
    # Unpacked at once: ranks of a group are often far apart, and each is read several times.
    endings = Endings(dict(endings.ranks), _told_apart(endings.groups))
    flights = _flights(endings)
    states = [*group_states(flights), *_pair_states(endings)]
    stuck_groups = [state for state in states if _is_stuck(state, endings, least_wait_ns)]
    absent = {rank for state in stuck_groups for rank in state.absent}
    # They wait elsewhere, perhaps for each other: that came to be written a moment later.
    elsewhere = [
        state for state in states if state not in stuck_groups and absent & {*state.waiting}
    ]
    stuck_groups += [state for state in elsewhere if _is_stuck(state, endings, least_wait_ns // 2)]
    mismatched = [
        m
        for m in mismatches(flights)
        if any(_is_within(m, state) for state in stuck_groups) or _did_not_end(m, endings)
    ]
    rest = [s for s in stuck_groups if not any(_is_within(m, s) and m.blocks for m in mismatched)]
    return Hang(flights, tuple(rest), tuple(mismatched))


def _told_apart(groups: Mapping[str, GroupNames]) -> dict[str, GroupNames]:
    """Return the groups; to labels that several of the same ranks have their names are added."""
    names: defaultdict[tuple[str, tuple[int, ...]], set[str]] = defaultdict(set)
    for one in groups.values():
        names[one.label, one.ranks].add(one.name)
    return {
        key: replace(one, label=f"{one.label} ({one.name})")
        if len(names[one.label, one.ranks]) > 1
        else one
        for key, one in groups.items()
    }


def _ended_well(endings: Endings) -> bool:
    """Say whether all programs exited cleanly, with equally many calls on all ranks of a group."""
    calls: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for ending in endings.ranks.values():
        trailer, views = ending.trailer, ending.groups
        if not ending.is_whole or ending.breaks_off or ending.pairs_open:
            return False
        if trailer is not None and trailer.exception:
            return False
        if ending.symptoms != Symptoms() or any(map(_is_open, views.values())):
            return False
        for key, view in views.items():
            calls[key][view.enqueued] += 1
    ranks = {key: sum(r in endings.ranks for r in endings.groups[key].ranks) for key in calls}
    return all([*numbers.values()] == [ranks[key]] for key, numbers in calls.items())


def _is_open(view: RankFlight) -> bool:
    return view.completed < view.enqueued or bool(view.in_flight)


def hang_of_dumps(flights: FlightRecorders, unfinished: int) -> Hang:
    """Return what ranks waited in when they were dumped.

    Of one collective more than the others a dump's moment may be the cause; `unfinished` are too
    many for that.
    """
    if apart := dumped_apart(flights):
        return Hang(flights, (), (), is_of_dumps=True, apart=apart)
    states = group_states(flights)
    return Hang(
        flights,
        tuple(state for state in states if state.waiting),
        tuple(mismatches(flights)),
        tuple(state for state in states if state.unfinished_by >= unfinished),
        is_of_dumps=True,
    )


def roots(hang: Hang) -> tuple[int, ...]:
    """Return the ranks that others wait for and that wait for nothing themselves."""
    absent = {rank for state in hang.stuck_groups for rank in state.absent}
    waiting = {
        rank for state in hang.stuck_groups if _is_bound(state, hang) for rank in state.waiting
    }
    blocking = [one for one in hang.mismatched if one.blocks]
    called = {r for one in blocking for _, ranks in one.values for r in ranks}
    return tuple(sorted(absent - waiting - called))


def _is_bound(state: GroupState, hang: Hang) -> bool:
    """Say whether waiting in it keeps a rank from going on; a device goes through its own queue."""
    return bool(state.absent) or not hang.is_of_dumps


def cycles(hang: Hang) -> list[tuple[tuple[int, ...], list[GroupState]]]:
    """Return the ranks that wait, over others, for themselves, and the calls in which they do."""
    states = [state for state in hang.stuck_groups if state.absent]
    waits_in: defaultdict[int, list[int]] = defaultdict(list)
    for place, state in enumerate(states):
        for rank in state.waiting:
            waits_in[rank].append(place)
    # From a call to those in which its absent ranks wait: thousands of ranks are in few calls.
    leads_to = [{place for r in state.absent for place in waits_in[r]} for state in states]
    found = []
    for circle in _circles(leads_to):
        within = [states[place] for place in sorted(circle)]
        absent = {rank for state in within for rank in state.absent}
        ranks = tuple(sorted(absent & {rank for state in within for rank in state.waiting}))
        found.append((ranks, within))
    return sorted(found, key=lambda one: one[0])


def _circles(leads_to: Sequence[set[int]]) -> Iterator[set[int]]:
    """Yield sets of nodes, each of which leads to all others of its set (Kosaraju)."""
    comes_from: list[set[int]] = [set() for _ in leads_to]
    for place, others in enumerate(leads_to):
        for other in others:
            comes_from[other].add(place)
    seen = set[int]()
    finished = [node for start in range(len(leads_to)) for node in _walk(start, leads_to, seen)]
    seen = set[int]()
    for start in reversed(finished):
        circle = {*_walk(start, comes_from, seen)}
        if len(circle) > 1:
            yield circle


def _walk(start: int, leads_to: Sequence[set[int]], seen: set[int]) -> Iterator[int]:
    """Yield what can be reached and was not seen, each node after all that it leads to."""
    pending = [(start, False)]
    while pending:
        node, is_done = pending.pop()
        if is_done:
            yield node
        elif node not in seen:
            seen.add(node)
            pending += [(node, True), *((other, False) for other in leads_to[node] - seen)]


def was_alive_meanwhile(ending: Ending, state: GroupState) -> bool:
    """Say whether a rank that closed no record lived on while others waited."""
    return ending.alive_ns >= state.since_ns + LOST_NS


def is_known(ending: Ending, state: GroupState) -> bool:
    """Say whether a call of a rank while others waited would be in its record."""
    return ending.has_state or was_alive_meanwhile(ending, state)


def _flights(endings: Endings) -> FlightRecorders:
    """Return the ranks of which all calls are known, in the terms of dumps."""
    most = {key: _most_completed(key, endings) for key in endings.groups}
    for key in _misnumbered(endings):
        del most[key]
    return FlightRecorders(
        {
            rank: _dump(ending, endings, most)
            for rank, ending in endings.ranks.items()
            if ending.is_whole
        }
    )


def _most_completed(key: str, endings: Endings) -> float:
    """Return the number of the last collective that every rank with a trailer has called."""
    members = [endings.ranks[rank] for rank in endings.groups[key].ranks if rank in endings.ranks]
    closed = [member for member in members if member.is_whole and not member.breaks_off]
    calls = [member.groups[key].enqueued if key in member.groups else 0 for member in closed]
    return min(calls, default=math.inf)


def _corrected(view: RankFlight, most_completed: float) -> RankFlight:
    """Take for in flight what cannot have completed: some rank never called it.

    A Work that an error ends, because a peer is gone, calls itself completed.
    """
    calls = {
        number: replace(call, is_in_flight=True)
        for number, call in view.calls.items()
        if number > most_completed and call.op in SYNCHRONISING
    }
    if not calls:
        return view
    completed = min(view.completed, min(calls) - 1)
    return replace(view, completed=completed, calls=view.calls | calls)


def _dump(ending: Ending, endings: Endings, most_completed: Mapping[str, float]) -> DumpedRank:
    groups = {
        key: view if ending.is_on_device else _corrected(view, most_completed[key])
        for key, view in ending.groups.items()
        if key in most_completed
    }
    return DumpedRank(
        world_size=ending.world_size,
        knows_completion=not ending.is_on_device,
        groups=groups,
        labels={key: endings.groups[key].label for key in groups},
        members={key: endings.groups[key].ranks for key in groups},
        last_frame=ending.last_frame,
    )


def _misnumbered(endings: Endings) -> Iterator[str]:
    """Yield groups whose calls were numbered from different moments on.

    No rank leaves a synchronising collective before all have entered it, by their clocks.
    """
    ranks = [ending for ending in endings.ranks.values() if not ending.is_on_device]
    bounds = [ending.bound_ns for ending in ranks]
    doubt_ns = 2 * max((bound or 0 for bound in bounds), default=0)
    for key in endings.groups if None not in bounds else ():
        views = [ending.groups[key] for ending in ranks if key in ending.groups]
        fits = [*_fits(views, doubt_ns)]
        if fits.count(False) > _MOST_MISFITS * len(fits):
            yield key


def _fits(views: Sequence[RankFlight], doubt_ns: int) -> Iterator[bool]:
    calls: defaultdict[int, list[Call]] = defaultdict(list)
    for view in views:
        for number, call in view.calls.items():
            if call.op in SYNCHRONISING and not call.is_in_flight:
                calls[number].append(call)
    for same in calls.values():
        yield max(c.created_ns for c in same) <= min(c.until_ns for c in same) + doubt_ns


def _pair_states(endings: Endings) -> Iterator[GroupState]:
    """Yield sends and receives as groups of two: the n-th here meets the n-th there.

    Of several of a rank, those that the other side has answered are not what it waits for.
    """
    for rank, ending in endings.ranks.items():
        found: dict[tuple[str, int], GroupState] = {}
        for one in ending.pairs_open:
            side = (one.call.op, one.peer)
            if not ending.is_whole or side in found:
                continue
            state = pair_state(rank, one, endings)
            if one.call.is_in_flight or _is_unanswered(state, endings):
                found[side] = state
        states = [*found.values()]
        yield from [s for s in states if s.absent or s.unknown or s.failed] or states


def _is_unanswered(state: GroupState, endings: Endings) -> bool:
    """Say whether a receive that calls itself complete cannot be: its sender never sent."""
    sender = endings.ranks.get(state.members[1])
    is_receive = state.call is not None and state.call.op == "recv"
    is_closed = sender is not None and not sender.breaks_off
    return is_receive and is_closed and bool(state.absent)


def pair_state(rank: int, one: PairCall, endings: Endings) -> GroupState:
    """Return a send or receive of a rank as a group of two, in which it waits."""
    peer = endings.ranks.get(one.peer)
    calls = peer.pairs.get((one.group, OTHER_SIDE[one.call.op], rank), 0) if peer else 0
    is_known = peer is not None and peer.is_whole
    return GroupState(
        name=one.group,
        label=endings.groups[one.group].label,
        members=(rank, one.peer),
        in_flight=0,
        p2p_in_flight=1,
        seq=one.number,
        call=one.call,
        waiting=(rank,),
        absent=(one.peer,) if is_known and calls < one.number else (),
        unknown=() if is_known else (one.peer,),
        waited_ns=one.call.in_flight_ns,
        failed=(rank,) if one.call.has_failed else (),
    )


def _is_stuck(state: GroupState, endings: Endings, least_wait_ns: int) -> bool:
    if not state.waiting or not (state.failed or state.waited_ns >= least_wait_ns):
        return False
    if _is_left(state, endings):
        return False
    # That a device has ended a collective is not always seen: only who called it is known.
    on_device = any(endings.ranks[rank].is_on_device for rank in state.waiting)
    return bool(state.absent) or not on_device


def _is_left(state: GroupState, endings: Endings) -> bool:
    """Say whether all ranks had entered it and exited cleanly after that: no host waited in it."""
    if state.absent or state.unknown or state.failed:
        return False
    ends = [endings.ranks[rank] for rank in state.members]
    return all(
        end.left_ns is not None
        or (
            end.trailer is not None
            and end.trailer.reason == "exit"
            and not end.trailer.exception
            and end.symptoms.at_ns is None
        )
        for end in ends
    )


def _did_not_end(mismatch: Mismatch, endings: Endings) -> bool:
    """Say whether a rank ended in it; when a device does, it is not seen."""
    return any(
        call.is_in_flight and not endings.ranks[rank].is_on_device
        for rank, call in mismatch.calls.items()
    )


def _is_within(mismatch: Mismatch, state: GroupState) -> bool:
    return mismatch.name == state.name and mismatch.seq <= state.seq and not state.is_pair
