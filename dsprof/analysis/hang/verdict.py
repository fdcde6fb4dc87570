"""Why a run is stuck or crashed: who, in what, since when, and what others wait for.

One analysis for the report, the command line and the training process itself: it takes how each
rank ended, or where it is now (`Endings`), and dumps of torch's flight recorder if there are any.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.hang import words
from dsprof.analysis.hang.causes import broken_links, cut_off
from dsprof.analysis.hang.ends import ended
from dsprof.analysis.hang.fates import Fate, by_look, fate_of, stopped_before
from dsprof.analysis.hang.flight_recorders import GroupState, Mismatch
from dsprof.analysis.hang.model import (
    Cause,
    HangReport,
    HangVerdict,
    Kind,
)
from dsprof.analysis.hang.records import with_few_records, without_record
from dsprof.analysis.hang.telling import Telling, groups_of, operation, usual_call
from dsprof.analysis.hang.waits import (
    LEAST_WAIT_NS,
    LOST_NS,
    Hang,
    cycles,
    find_hang,
    hang_of_dumps,
    roots,
)
from dsprof.findings.wording import (
    broken_off,
    capitalised,
    duration,
    long_duration,
    named,
    ranks_do,
)
from dsprof.trace.writing.heartbeat import LONGEST_NS

UNFINISHED = 2
"""Collectives of a group that one rank's device has ended and another's has not."""

_MISMATCHES = {
    "operation": "op",
    "root": "root",
    "size": "size",
    "dtype": "dtype",
    "reduce op": "reduce_op",
    "order": "order",
}
_NAMED = 3
_STALE_NS = 3600 * 10**9


def verdicts(endings: Endings, flights: FlightRecorders | None = None) -> list[HangVerdict]:
    """Return what went wrong, the root first; one verdict at least."""
    return judged(hang_of(endings, flights), endings)


def hang_of(
    endings: Endings,
    flights: FlightRecorders | None = None,
    least_wait_ns: int = LEAST_WAIT_NS,
    unfinished: int = UNFINISHED,
    *,
    shared: Collection[str] = (),
) -> Hang:
    """Return who waits where, by dumps of one moment if there are any, else by how ranks ended.

    Threads of a rank share the groups of the labels `shared`.
    """
    if flights is not None and len(flights.ranks) > 1:
        hang = hang_of_dumps(flights, unfinished)
        if not (hang.apart and endings.ranks):
            return hang
    if flights is not None and flights.ranks and not endings.ranks:
        return Hang(flights, (), (), is_of_dumps=True)  # one dump proves no wait
    found = find_hang(endings, least_wait_ns)
    mismatched = (replace(one, is_of_threads=one.label in shared) for one in found.mismatched)
    return replace(found, mismatched=tuple(mismatched), shared=shared)


def report_of(hang: Hang, endings: Endings) -> HangReport:
    """Return the verdicts, and where each group stands."""
    return HangReport(verdicts=judged(hang, endings), groups=[*groups_of(hang)])


def is_of_threads(label: str, cause: Cause, hang: Hang) -> bool:
    """Say whether ranks may not have come because threads share the group."""
    return label in hang.shared and cause.kind in ("unknown", "diverged")


def judged(hang: Hang, endings: Endings) -> list[HangVerdict]:
    """Return what is behind the waits of `hang`, the root first; `endings` may lack ranks."""
    return [*_Judge(endings, hang).verdicts()]


class _Judge:
    def __init__(self, endings: Endings, hang: Hang) -> None:
        self.endings, self.hang, self.tell = endings, hang, Telling(endings, hang)

    def verdicts(self) -> Iterator[HangVerdict]:
        mismatched = sorted(self.hang.mismatched, key=lambda one: not one.blocks)
        blocking = sum(one.blocks for one in mismatched)
        found = [
            *self._mismatched(mismatched[:blocking]),
            *self._unfinished(),
            *self._absent(),
            *self._deadlocked(),
            *without_record(self.tell),
            *with_few_records(self.tell),
            *self._entered_by_all(),
            *self._mismatched(mismatched[blocking:]),
        ]
        found = [*map(self.tell.with_further_calls, found or [ended(self.tell)])]
        found = [*map(self._without_tails, found)]
        note = _stale(self.hang)
        yield from (_doubted(one, note) if note else one for one in found)

    def _without_tails(self, verdict: HangVerdict) -> HangVerdict:
        """Say what is missing at the ends of records, and be less sure if the wait ended there."""
        lost = {rank for rank, end in self.endings.ranks.items() if end.has_lost_tail}
        named_or_all, waiting = {*verdict.ranks} or lost, {*verdict.waiting}
        involved = sorted(lost & (named_or_all | waiting))
        if not involved or self.hang.is_of_dumps or verdict.kind == "mismatch":
            return verdict  # whose calls are on record
        # A whole record of a rank that waits shows that its wait did not end.
        is_doubtful = bool(waiting) and waiting <= lost and not lost.isdisjoint(named_or_all)
        ended_there = ", in which the wait may have ended" * is_doubtful
        missing = f"Up to the last half second of {named(involved)} is missing{ended_there}."
        found = _with_note(verdict, missing)
        if is_doubtful and verdict.confidence == "high":
            return msgspec.structs.replace(found, confidence="medium")
        return found

    def _mismatched(self, those: Iterable[Mismatch]) -> Iterator[HangVerdict]:
        for found in those:
            call = usual_call(found)
            yield HangVerdict(
                kind="mismatch",
                ranks=found.odd,
                mismatch=_MISMATCHES[found.what],
                operation=operation(call, found.label, found.seq) if call else None,
                waiting=found.waiting,
                waited_ns=found.waited_ns,
                cause=Cause("diverged", words.branches(found)),
                stacks=self.tell.stacks([ranks[0] for _, ranks in found.values[:2]], found),
                confidence="high" if found.is_sure else "medium",
                sentence=words.difference(found),
            )

    def _unfinished(self) -> Iterator[HangVerdict]:
        """Ranks whose program went on, and whose device did not."""
        if not (lagging := self.hang.unfinished):
            return
        ranks = tuple(sorted({rank for state in lagging for rank in state.unfinished}))
        most = max(lagging, key=lambda state: state.unfinished_by)
        yield self.tell.of_state(
            most,
            kind="frozen",
            ranks=ranks,
            cause=Cause(
                "unknown",
                "The host enqueued them, but the device did not complete them: a device error, or "
                "a kernel that never ends.",
            ),
            confidence="medium",
            sentence=f"{capitalised(named(ranks))} did not finish collectives that others in the "
            f"group finished: up to {most.unfinished_by} in {most.label}.",
            is_of_device=True,
        )

    def _absent(self) -> Iterator[HangVerdict]:
        """Ranks that others wait for, by what became of them; those first that were first."""
        found: defaultdict[tuple[Kind, str], list[tuple[int, GroupState, Fate]]]
        found = defaultdict(list)
        of_device = {rank for state in self.hang.unfinished for rank in state.unfinished}
        ranks = [rank for rank in roots(self.hang) if rank not in of_device]
        ranks = [rank for rank in ranks if not self.endings.has_followed(rank)] or ranks
        for rank in ranks:
            states = [state for state in self.hang.stuck_groups if rank in state.absent]
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
        has_followed = all(map(self.endings.has_followed, ranks))
        texts = dict.fromkeys(fate.cause.text for _, fate in here[:_NAMED])
        if host := self.endings.host_of(ranks):
            texts = {f"{capitalised(named(ranks))} are all the ranks of {host}.": None, **texts}
        if is_of_threads(first.label, cause, self.hang):
            texts = {words.threads(first.label, "may differ"): None, **texts}
        who = named([rank for rank, _ in here])
        said = f"{who} {missed} {words.missed(first)}; {words.waited(first)}."
        if len(here) < len(ranks):
            said = f"{named(ranks)} did not join calls that others wait in. First: {said}"
        return self.tell.of_state(
            first,
            kind=group[0][2].kind,
            ranks=ranks,
            cause=Cause(
                cause.kind, f"{itself}; its peer may be the cause." if itself else " ".join(texts)
            ),
            confidence="low" if itself or has_followed else "high" if is_sure else "medium",
            sentence=capitalised(said),
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
            yield self.tell.of_state(
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
                    "several groups, or sends and receives, in different orders, or one leaves a "
                    "call out.",
                ),
                chain=tuple(
                    (waiter, awaited, words.link(s))
                    for s in states
                    for waiter in s.waiting
                    for awaited in s.absent
                    if {waiter, awaited} <= members
                ),
                confidence="high",
                sentence=f"{capitalised(named(who))} are deadlocked. {links}.",
            )

    def _entered_by_all(self) -> Iterator[HangVerdict]:
        joined = [s for s in self.hang.stuck_groups if not (s.unknown or s.absent)]
        if not joined or roots(self.hang) or cycles(self.hang) or self.hang.is_of_dumps:
            return
        first = joined[0]
        late = _late(first)
        if late:
            others = replace(
                first,
                waiting=tuple(rank for rank in first.waiting if rank not in late),
                failed=tuple(rank for rank in first.failed if rank not in late),
            )
            yield self.tell.of_state(
                first,
                kind="came_late",
                ranks=late,
                waiting=others.waiting,
                cause=self._fate_of_late(late[0], first),
                confidence="high",
                sentence=f"{capitalised(named(late))} came to {words.call(first)} after "
                f"{named(others.failed)} had given up; {words.waited(others)}.",
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
        ended = seen or quiet
        others = replace(state, waiting=tuple(r for r in state.waiting if r not in ended))
        said = (
            f"Every rank entered {words.call(state)}, but it did not complete; "
            f"{words.waited(others if others.waiting else state)}."
        )
        if seen:
            ranks = tuple(sorted(seen))
            fate = seen[ranks[0]]
            return self.tell.of_state(
                state,
                kind=fate.kind,
                ranks=ranks,
                cause=fate.cause,
                confidence="high",
                sentence=said,
            )
        if quiet:
            text = (
                f"{capitalised(broken_off(quiet))} in it: killed or crashed."
                if state.failed
                else f"{capitalised(broken_off(quiet))} in it: stopped, killed or crashed."
            )
            text += stopped_before(quiet[0], self.endings, state) if len(quiet) == 1 else ""
            return self.tell.of_state(
                state,
                kind="died" if state.failed else "frozen",
                ranks=quiet,
                cause=Cause("unknown", text),
                confidence="medium",
                sentence=said,
            )
        links = broken_links({r: self.endings.ranks[r].symptoms for r in state.members})
        between = "; ".join(f"{one} and {other}" for one, other in links[:_NAMED])
        who = "Every rank is alive in it"
        if done := [rank for rank in state.members if rank not in state.waiting]:
            who = f"{capitalised(named(done))} completed it, others did not"
        tags = "the two calls differ in `tag`, " * state.is_pair  # which no trace holds
        text = (
            f"Bytes stay unsent between ranks {between}: the network does not carry them."
            if links
            else f"{who}: {tags}the network between them broke, the timeout "
            "was too short, or the transfer was still running when the run ended."
        )
        return self.tell.of_state(
            state,
            kind="network",
            ranks=cut_off(links) or state.members,
            waiting=state.waiting,
            cause=Cause("unknown", text),
            confidence="medium" if links or state.waited_ns >= LONGEST_NS else "low",
            sentence=said,
        )

    def _quiet(self, state: GroupState) -> tuple[int, ...]:
        """Return the ranks whose record ends while that of others goes on."""
        ends = {rank: self.endings.ranks[rank] for rank in state.members}
        unclosed = tuple(rank for rank, end in ends.items() if end.breaks_off)
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

    def _knows_completion(self, ranks: Iterable[int]) -> bool:
        dumps = self.hang.flights.ranks
        return (
            all(dumps[rank].knows_completion for rank in ranks) if self.hang.is_of_dumps else True
        )

    def _peers(self, ranks: Iterable[int]) -> str:
        """Say in which send or receive the first of these ranks waits itself; "" if in none."""
        pairs = ((rank, words.pair(self.hang.flights.ranks[rank])) for rank in ranks)
        return next((f"Rank {rank} itself waits in {pair}" for rank, pair in pairs if pair), "")


def _stale(hang: Hang) -> str:
    """Say that a dump may be of an earlier start; "" if nothing suggests it."""
    if not hang.is_of_dumps or hang.apart:
        return ""
    newest_ns = {rank: dump.last_ns for rank, dump in hang.flights.ranks.items() if dump.last_ns}
    oldest = min(newest_ns, key=newest_ns.__getitem__, default=-1)
    by_ns = max(newest_ns.values(), default=0) - newest_ns.get(oldest, 0)
    return (
        f"The newest call of rank {oldest} is {long_duration(by_ns)} older than that of others: "
        "its dump may be of an earlier start."
        if by_ns > _STALE_NS
        else ""
    )


def _doubted(verdict: HangVerdict, note: str) -> HangVerdict:
    return msgspec.structs.replace(_with_note(verdict, note), confidence="low")


def _with_note(verdict: HangVerdict, note: str) -> HangVerdict:
    cause = Cause(verdict.cause.kind, f"{verdict.cause.text} {note}".strip())
    return msgspec.structs.replace(verdict, cause=cause)


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
    if any(state.is_pair for state in states) or None in calls:
        return "order"
    alike = {(c.op, c.elements, c.dtype, c.frame) for c in calls if c is not None}
    names = {state.name for state in states}
    return "group" if len(alike) == 1 and len(names) > 1 and calls[0].frame else "order"  # type: ignore[union-attr]
