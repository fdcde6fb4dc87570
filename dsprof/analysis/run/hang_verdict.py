"""Why a run is stuck or crashed: who, in what, since when, and what others wait for.

One analysis for the report, the command line and the training process itself: it takes how each
rank ended, or where it is now (`Endings`), and dumps of torch's flight recorder if there are any.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dsprof.analysis.aggregates.endings import Ending, Endings
from dsprof.analysis.aggregates.flight_recorders import Call, FlightRecorders
from dsprof.analysis.run import hang_words as words
from dsprof.analysis.run.endings import (
    LEAST_WAIT_NS,
    LOST_NS,
    Hang,
    cycles,
    find_hang,
    hang_of_dumps,
    roots,
)
from dsprof.analysis.run.flight_recorders import GroupState, Mismatch
from dsprof.analysis.run.hang_fates import Fate, by_exception, by_kill, by_look, fate_of
from dsprof.analysis.run.hang_model import (
    Cause,
    GroupWaits,
    HangReport,
    HangVerdict,
    Kind,
    Operation,
)
from dsprof.environment.processes import GONE
from dsprof.findings.wording import duration, named, ranks_do
from dsprof.trace.heartbeat import LONGEST_NS

UNFINISHED = 2
"""Collectives of a group that one rank's device has ended and another's has not."""

_MISMATCHES = {
    "operation": "op",
    "size": "size",
    "dtype": "dtype",
    "reduce op": "reduce_op",
    "order": "order",
}
_NAMED = 3
_LATE_NS = 2 * LONGEST_NS
_LINKS = 16


def verdicts(endings: Endings, flights: FlightRecorders | None = None) -> list[HangVerdict]:
    """Return what went wrong, the root first; one verdict at least."""
    return judged(hang_of(endings, flights), endings)


def hang_of(
    endings: Endings,
    flights: FlightRecorders | None = None,
    least_wait_ns: int = LEAST_WAIT_NS,
    unfinished: int = UNFINISHED,
) -> Hang:
    """Return who waits where, by dumps where there are two of them, else by how ranks ended."""
    if flights is not None and len(flights.ranks) > 1:
        return hang_of_dumps(flights, unfinished)
    return find_hang(endings, least_wait_ns)


def report_of(hang: Hang, endings: Endings) -> HangReport:
    """Return the verdicts, and where each group stands."""
    return HangReport(verdicts=judged(hang, endings), groups=[*_groups(hang)])


def judged(hang: Hang, endings: Endings) -> list[HangVerdict]:
    """Return what is behind the waits of `hang`, the root first; `endings` may lack ranks."""
    return [*_Judge(endings, hang).verdicts()]


@dataclass(frozen=True, slots=True)
class _Judge:
    endings: Endings
    hang: Hang

    def verdicts(self) -> Iterator[HangVerdict]:
        found = [
            *self._mismatched(),
            *self._unfinished(),
            *self._absent(),
            *self._deadlocked(),
            *self._without_record(),
            *self._with_few_records(),
            *self._entered_by_all(),
        ]
        yield from found or [self._ended()]

    def _mismatched(self) -> Iterator[HangVerdict]:
        for found in self.hang.mismatched:
            call = _first_call(found.calls)
            called = [rank for _, ranks in found.values for rank in ranks]
            yield HangVerdict(
                kind="mismatch",
                ranks=found.odd,
                mismatch=_MISMATCHES[found.what],
                operation=_operation(call, found.label, found.seq) if call else None,
                waiting=tuple(sorted(rank for rank in called if rank not in found.odd)),
                waited_ns=max((c.in_flight_ns for c in found.calls.values()), default=0) or None,
                cause=Cause("diverged", words.branches(found)),
                stacks=self._stacks([ranks[0] for _, ranks in found.values[:2]], found),
                confidence="high" if found.is_sure else "medium",
                sentence=words.difference(found),
            )

    def _unfinished(self) -> Iterator[HangVerdict]:
        """Ranks whose program went on, and whose device did not."""
        if not (lagging := self.hang.unfinished):
            return
        ranks = tuple(sorted({rank for state in lagging for rank in state.unfinished}))
        most = max(lagging, key=lambda state: state.unfinished_by)
        yield self._of_state(
            most,
            kind="frozen",
            ranks=ranks,
            cause=Cause(
                "unknown",
                "The host enqueued them, but the device did not complete them: a device error, or "
                "a kernel that never ends.",
            ),
            confidence="medium",
            sentence=f"{named(ranks).capitalize()} did not finish collectives that others in the "
            f"group finished: up to {most.unfinished_by} in {most.label}.",
            is_of_device=True,
        )

    def _absent(self) -> Iterator[HangVerdict]:
        """Ranks that others wait for, by what became of them; those first that were first."""
        found: defaultdict[tuple[Kind, str], list[tuple[int, GroupState, Fate]]]
        found = defaultdict(list)
        of_device = {rank for state in self.hang.unfinished for rank in state.unfinished}
        ranks = [rank for rank in roots(self.hang) if rank not in of_device]
        for rank in ranks:
            states = [state for state in self.hang.held_up if rank in state.absent]
            first = min(states, key=lambda s: (not set(s.absent) <= set(ranks), s.since_ns))
            fate = fate_of(rank, self.endings, first)
            found[fate.kind, fate.cause.kind].append((rank, first, fate))
        for group in sorted(found.values(), key=lambda g: min(s.since_ns for _, s, _ in g)):
            yield self._never_entered(group)

    def _never_entered(self, group: Sequence[tuple[int, GroupState, Fate]]) -> HangVerdict:
        ranks = tuple(rank for rank, _, _ in group)
        first = min((state for _, state, _ in group), key=lambda state: state.since_ns)
        here = [(rank, fate) for rank, state, fate in group if state is first]
        is_proven = all(fate.is_proven for _, fate in here)
        # What a killed rank did in its last half second was not written.
        missed = "never entered" if is_proven else "stopped in or before"
        itself = self._peers(ranks) if self.hang.is_of_dumps else ""
        is_sure = is_proven and not first.unknown and self._knows_completion(ranks)
        cause = here[0][1].cause
        texts = dict.fromkeys(fate.cause.text for _, fate in here[:_NAMED])
        who = named([rank for rank, _ in here])
        said = f"{who} {missed} {words.missed(first)}; {words.waited(first)}."
        if len(here) < len(ranks):
            said = f"{named(ranks)} did not join calls that others wait in. First: {said}"
        return self._of_state(
            first,
            kind=group[0][2].kind,
            ranks=ranks,
            cause=Cause(
                cause.kind, f"{itself}; its peer may be the cause." if itself else " ".join(texts)
            ),
            confidence="low" if itself else "high" if is_sure else "medium",
            sentence=said[0].upper() + said[1:],
        )

    def _deadlocked(self) -> Iterator[HangVerdict]:
        for who, states in cycles(self.hang):
            members = set(who)
            ranks = _lone(states, members) or who
            links = ". ".join(
                f"{ranks_do([r for r in state.waiting if r in members], 'wait')} in "
                f"{words.call(state)} for {named([r for r in state.absent if r in members])}"
                for state in states[:4]
            )
            yield self._of_state(
                states[0],
                kind="deadlock",
                ranks=ranks,
                mismatch=_other_way(states),
                waiting=tuple(sorted({r for s in states for r in s.waiting} - {*ranks}))
                if len(ranks) < len(who)
                else who,
                cause=Cause(
                    "diverged",
                    "Each of these ranks waits for another of them: they call collectives of "
                    "several groups, or sends and receives, in different orders.",
                ),
                chain=tuple(
                    (waiter, awaited, words.link(s))
                    for s in states
                    for waiter in s.waiting
                    for awaited in s.absent
                    if {waiter, awaited} <= members
                )[:_LINKS],
                confidence="high",
                sentence=f"{named(who).capitalize()} are deadlocked. {links}.",
            )

    def _without_record(self) -> Iterator[HangVerdict]:
        """Ranks without a usable record, where all others of a group have entered and wait."""
        suspect = [
            state
            for state in self.hang.held_up
            if state.unknown and not state.absent and _is_minority(state)
        ]
        if not suspect or roots(self.hang) or self.hang.unfinished:
            return
        ranks = tuple(sorted({rank for state in suspect for rank in state.unknown}))
        missing = [rank for rank in ranks if rank not in self.endings.ranks]
        noun = "dump" if self.hang.is_of_dumps else "trace"
        lost = f"wrote no {noun}" if missing else "stopped recording before the run ended"
        first = suspect[0]
        yield self._of_state(
            first,
            kind="unknown",
            ranks=ranks,
            cause=Cause("unknown", _no_record(missing, of_dumps=self.hang.is_of_dumps)),
            confidence="low",
            sentence=f"{named(missing or ranks).capitalize()} {lost}, and all other ranks were in "
            f"{words.call(first)}; {words.waited(first)}.",
        )

    def _with_few_records(self) -> Iterator[HangVerdict]:
        """Ranks that wait in a group of which most records are missing."""
        states = [state for state in self.hang.held_up if state.unknown and not state.absent]
        if not states or self.hang.is_of_dumps or self._names_somebody():
            return
        first = states[0]
        yield self._of_state(
            first,
            kind="unknown",
            ranks=(),
            cause=Cause("unknown", "Copy the traces of all hosts into one folder."),
            confidence="low",
            sentence=f"{len(first.unknown)} of {len(first.members)} traces are missing, so it is "
            f"unknown who is absent from {words.call(first)}; {words.waited(first)}.",
        )

    def _names_somebody(self) -> bool:
        """Say whether another verdict tells who keeps others waiting."""
        few = (s for s in self.hang.held_up if s.unknown and not s.absent and _is_minority(s))
        hang = self.hang
        return bool(hang.mismatched or hang.unfinished or roots(hang) or cycles(hang) or any(few))

    def _entered_by_all(self) -> Iterator[HangVerdict]:
        joined = [s for s in self.hang.held_up if not (s.unknown or s.absent)]
        if not joined or roots(self.hang) or cycles(self.hang) or self.hang.is_of_dumps:
            return
        first = joined[0]
        late = _late(first)
        if late:
            yield self._of_state(
                first,
                kind="came_late",
                ranks=late,
                waiting=tuple(rank for rank in first.waiting if rank not in late),
                cause=self._fate_of_late(late[0], first),
                confidence="high",
                sentence=f"{named(late).capitalize()} came to {words.call(first)} after "
                f"{named(first.failed)} had given up; {words.waited(first)}.",
            )
            return
        yield self._stuck_within(first)

    def _stuck_within(self, state: GroupState) -> HangVerdict:
        """A collective that every rank entered."""
        fates = {r: by_look(r, self.endings, state) for r in state.members}
        seen = {r: f for r, f in fates.items() if f and f.kind in ("died", "frozen")}
        # Whose exception came from this very wait is a victim.
        seen = {
            r: f for r, f in seen.items() if not (f.cause.kind == "exception" and r in state.failed)
        }
        quiet = self._quiet(state)
        said = (
            f"Every rank entered {words.call(state)}, but it did not complete; "
            f"{words.waited(state)}."
        )
        if seen:
            ranks = tuple(sorted(seen))
            fate = seen[ranks[0]]
            return self._of_state(
                state,
                kind=fate.kind,
                ranks=ranks,
                cause=fate.cause,
                confidence="high",
                sentence=said,
            )
        if quiet:
            text = (
                f"The record of {named(quiet)} ends in it without a trailer: killed or crashed."
                if state.failed
                else f"The record of {named(quiet)} ends in it: stopped, killed or crashed."
            )
            return self._of_state(
                state,
                kind="died" if state.failed else "frozen",
                ranks=quiet,
                cause=Cause("unknown", text),
                confidence="medium",
                sentence=said,
            )
        return self._of_state(
            state,
            kind="network",
            ranks=state.members,
            waiting=state.waiting,
            cause=Cause(
                "unknown",
                "Every rank is alive in it: the network between them broke, the timeout was too "
                "short, or the transfer was still running when the run ended.",
            ),
            confidence="medium" if state.waited_ns >= LONGEST_NS else "low",
            sentence=said,
        )

    def _quiet(self, state: GroupState) -> tuple[int, ...]:
        """Return the ranks whose record ends while that of others goes on."""
        ends = {rank: self.endings.ranks[rank] for rank in state.members}
        unclosed = tuple(rank for rank, end in ends.items() if end.trailer is None)
        if len(unclosed) < len(ends) and state.failed:
            return unclosed
        latest_ns = max(end.alive_ns for end in ends.values())
        return tuple(r for r in unclosed if latest_ns > ends[r].alive_ns + LONGEST_NS + 2 * LOST_NS)

    def _fate_of_late(self, rank: int, state: GroupState) -> Cause:
        fate = by_look(rank, self.endings, state)
        if fate is not None and fate.kind == "never_entered":
            return fate.cause
        late_ns = state.calls[rank].created_ns - state.since_ns
        return Cause("unknown", f"Rank {rank} entered {duration(late_ns)} after the first rank.")

    def _ended(self) -> HangVerdict:
        """Judge a run in which no rank is known to wait."""
        if self.hang.is_of_dumps:
            return self._dumped()
        ends = self.endings.ranks
        asked_ns = [e.failed_ns for e in ends.values() if e.is_interrupted and e.failed_ns]
        until_ns = min(asked_ns, default=math.inf)  # what failed after Ctrl-C failed by it
        failed = {
            r: e
            for r, e in ends.items()
            if e.trailer is not None and e.trailer.exception and (e.failed_ns or 0) < until_ns
        }
        gone = {r: e for r, e in ends.items() if e.symptoms.state == GONE and e.trailer is None}
        if failed or gone:
            return self._died(failed | gone)
        killed = sorted(r for r, e in ends.items() if e.trailer is None and not e.symptoms.is_alive)
        if killed:
            return HangVerdict(
                kind="unknown",
                ranks=tuple(killed) if len(killed) < len(ends) else (),
                cause=Cause("unknown", "A process that is killed writes no trailer."),
                sentence=f"Unknown: {named(killed)} ended without a trailer, and no rank is known "
                f"to have waited {duration(LEAST_WAIT_NS)} or longer.",
            )
        return HangVerdict(
            kind="none",
            confidence="high" if ends else "low",
            sentence=f"No rank waits for another one.{_exited_late(ends)}"
            if ends
            else "Unknown: no record says how ranks ended.",
        )

    def _dumped(self) -> HangVerdict:
        if not (pending := self.hang.held_up):
            return HangVerdict(kind="none", sentence="No collective was in flight in the dumps.")
        return HangVerdict(
            kind="unknown",
            cause=Cause(
                "unknown",
                "The run was healthy at that moment, or the network or a device is stuck.",
            ),
            sentence=f"{words.call(pending[0])} and collectives of {len(pending) - 1} more groups "
            "were in flight; every rank with a dump had joined them.",
        )

    def _died(self, dead: Mapping[int, Ending]) -> HangVerdict:
        """The rank that ended first is the root: the others may have followed it."""
        first = min(dead, key=lambda rank: dead[rank].failed_ns or dead[rank].alive_ns)
        ending = dead[first]
        kinds = {e.trailer.exception if e.trailer else "" for e in dead.values()}
        trailer = ending.trailer
        cause = by_exception(first, trailer) if trailer else by_kill(first, self.endings)
        everyone = len(dead) == len(self.endings.ranks) > 1 and len(kinds) == 1
        everyone |= cause.kind == "store" and len(dead) > 1  # which is no rank
        who = tuple(sorted(dead)) if everyone else (first,)
        by = f"ended by {trailer.exception}" if trailer else "died"
        return HangVerdict(
            kind="died",
            ranks=() if everyone else who,
            cause=cause,
            stacks=self._stacks(who[:2]),
            confidence="high" if everyone or len(dead) == 1 else "medium",
            sentence=f"{named(who).capitalize()} {by}; no rank is known to have waited for it.",
        )

    def _of_state(
        self,
        state: GroupState,
        *,
        ranks: tuple[int, ...],
        kind: Kind,
        cause: Cause,
        confidence: Literal["high", "medium", "low"],
        sentence: str,
        waiting: tuple[int, ...] | None = None,
        chain: tuple[tuple[int, int, str], ...] | None = None,
        mismatch: str | None = None,
        is_of_device: bool = False,
    ) -> HangVerdict:
        call, links = state.call, self._chain(ranks) if chain is None else chain
        here = [rank for rank in state.waiting if rank not in ranks]
        victims = {*here, *(waiter for waiter, _, _ in links)} - {*ranks}
        return HangVerdict(
            kind=kind,
            ranks=ranks,
            mismatch=mismatch,
            operation=_operation(call, state.label, state.seq) if call else None,
            waiting=tuple(sorted(victims)) if waiting is None else waiting,
            waited_ns=state.waited_ns or None,
            cause=cause,
            stacks=self._stacks([*ranks[:2], *here[:1]], state),
            chain=tuple(links[:_LINKS][::-1]) if chain is None else chain,
            confidence=confidence,
            sentence=sentence,
            is_of_device=is_of_device,
        )

    def _stacks(
        self, ranks: Iterable[int], at: GroupState | Mismatch | None = None
    ) -> dict[str, tuple[str, ...]]:
        """Return where ranks are; without a stack, the call site of their last collective."""
        calls = at.calls if at else {}
        found: dict[str, tuple[str, ...]] = {}
        for rank in ranks:
            ending, call = self.endings.ranks.get(rank), calls.get(rank) or self._waits_in(rank)
            flight = self.hang.flights.ranks.get(rank)
            stack = ending.symptoms.stack if ending else ()
            site = (call.frame if call else "") or (flight.last_frame if flight else "")
            if stack or site:
                found[str(rank)] = stack or (site,)
        return found

    def _waits_in(self, rank: int) -> Call | None:
        waits = (state for state in self.hang.held_up if rank in state.waiting)
        return next((state.calls.get(rank, state.call) for state in waits), None)

    def _chain(self, ranks: Sequence[int]) -> list[tuple[int, int, str]]:
        """Follow waits back from `ranks`, the nearest first: each rank that waits once."""
        links: list[tuple[int, int, str]] = []
        reached, states = set(ranks), [state for state in self.hang.held_up if state.absent]
        while near := [state for state in states if reached & {*state.absent}]:
            states = [state for state in states if state not in near]
            for state in near:
                awaited = min(reached & {*state.absent}, key=lambda rank: (rank not in ranks, rank))
                new = [waiter for waiter in state.waiting if waiter not in reached]
                links += [(waiter, awaited, words.link(state)) for waiter in new]
                reached.update(new)
        return links

    def _knows_completion(self, ranks: Iterable[int]) -> bool:
        dumps = self.hang.flights.ranks
        return (
            all(dumps[rank].knows_completion for rank in ranks) if self.hang.is_of_dumps else True
        )

    def _peers(self, ranks: Iterable[int]) -> str:
        """Say in which send or receive the first of these ranks waits itself; "" if in none."""
        for rank in ranks:
            dump = self.hang.flights.ranks[rank]
            for name, group in dump.groups.items():
                for entry in group.p2p_in_flight:
                    members = dump.members.get(name, ())
                    other = entry.target if entry.op == "send" else entry.source
                    whom = f" with rank {members[other]}" if 0 <= other < len(members) else ""
                    return f"Rank {rank} itself waits in {entry.op}{whom}"
        return ""


def _exited_late(ends: Mapping[int, Ending]) -> str:
    """Say which rank ended long after all others: a thread of it may not have ended."""
    ordered = sorted(ends, key=lambda rank: ends[rank].alive_ns)
    if len(ordered) < 2:
        return ""
    last, late_ns = ordered[-1], ends[ordered[-1]].alive_ns - ends[ordered[-2]].alive_ns
    return f" Rank {last} ended {duration(late_ns)} after the others." if late_ns > _LATE_NS else ""


def _is_minority(state: GroupState) -> bool:
    return 2 * len(state.unknown) <= len(state.members)


def _no_record(missing: Sequence[int], *, of_dumps: bool) -> str:
    if of_dumps:
        return "A process that died, or whose watchdog hung, writes no dump."
    if missing:
        return "The process died before it recorded anything, or its file is on another host."
    return "The end of the run is not in its file."


def _late(state: GroupState) -> tuple[int, ...]:
    """Return the ranks that entered only when others had given up."""
    gave_up_ns = min((state.calls[rank].until_ns for rank in state.failed), default=None)
    if gave_up_ns is None:
        return ()
    return tuple(
        r for r in state.waiting if r in state.calls and state.calls[r].created_ns > gave_up_ns
    )


def _lone(states: Sequence[GroupState], members: set[int]) -> tuple[int, ...]:
    """Return the ranks of a cycle that the most others wait for: they differ, the others agree."""
    awaited = sorted({tuple(sorted(members & {*s.absent})) for s in states}, key=len)
    if len(awaited) > 1 and len(awaited[0]) < len(awaited[1]):
        return awaited[0]
    return ()


def _other_way(states: Sequence[GroupState]) -> str | None:
    """Say how calls of a cycle differ: the same call in another group, or another order."""
    calls = [state.call for state in states]
    if any(state.p2p_in_flight for state in states) or None in calls:
        return "order"
    alike = {(c.op, c.elements, c.dtype, c.frame) for c in calls if c is not None}
    names = {state.name for state in states}
    return "group" if len(alike) == 1 and len(names) > 1 and calls[0].frame else "order"  # type: ignore[union-attr]


def _groups(hang: Hang) -> Iterator[GroupWaits]:
    for found in hang.mismatched:
        first = _first_call(found.calls)
        yield GroupWaits(
            group=found.label,
            name=found.name,
            ranks=tuple(sorted(found.calls)),
            op=first.op if first else "",
            number=found.seq,
            bytes=first.nbytes if first else None,
            waited_ns=max((c.in_flight_ns for c in found.calls.values()), default=0) or None,
            waiting=tuple(sorted(set(found.calls) - {*found.odd})),
            different=found.odd,
            called_from=first.frame if first else "",
        )
    for state in sorted(hang.held_up, key=lambda state: not (state.absent or state.unfinished)):
        call = state.call
        yield GroupWaits(
            group=state.label,
            name=state.name,
            ranks=state.members,
            op=call.op if call else "",
            number=state.seq if call else None,
            bytes=call.nbytes if call else None,
            waited_ns=state.waited_ns or None,
            waiting=state.waiting,
            absent=state.absent,
            unfinished=state.unfinished,
            unknown=state.unknown,
            called_from=call.frame if call else "",
        )


def _first_call(calls: Mapping[int, Call]) -> Call | None:
    return min(calls.values(), key=lambda call: call.created_ns, default=None)


def _operation(call: Call, label: str, seq: int) -> Operation:
    return Operation(
        op=call.op,
        group=label,
        seq=seq,
        step=call.step if call.step >= 0 else None,
        bytes=call.nbytes,
        dtype=call.dtype,
        call_site=call.frame,
    )


def _since_ns(state: GroupState) -> int:
    """Return when the first rank entered."""
    return state.call.created_ns if state.call else 0
