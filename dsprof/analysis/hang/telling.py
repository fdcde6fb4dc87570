"""A verdict and its groups told: the call, who waits over which calls, and where ranks are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.group_calls import Call
from dsprof.analysis.hang import words
from dsprof.analysis.hang.flight_recorders import GroupState, Mismatch
from dsprof.analysis.hang.model import Cause, GroupWaits, HangVerdict, Kind, Operation
from dsprof.analysis.hang.waits import Hang

_LINKS = 16


@dataclass(frozen=True, slots=True)
class Telling:
    """Knowledge of all ranks, for one verdict after the other."""

    endings: Endings
    hang: Hang

    def of_state(
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
        """Return a verdict on ranks that others wait for in the call of a group."""
        call, links = state.call, self._chain(ranks) if chain is None else chain
        here = [rank for rank in state.waiting if rank not in ranks]
        victims = {*here, *(waiter for waiter, _, _ in links)} - {*ranks}
        return HangVerdict(
            kind=kind,
            ranks=ranks,
            mismatch=mismatch,
            operation=operation(call, state.label, state.seq) if call else None,
            waiting=tuple(sorted(victims)) if waiting is None else waiting,
            waited_ns=state.waited_ns or None,
            cause=cause,
            stacks=self.stacks([*ranks[:2], *here[:1]], state),
            chain=tuple(links[:_LINKS][::-1]) if chain is None else chain[:_LINKS],
            confidence=confidence,
            sentence=sentence,
            is_of_device=is_of_device,
        )

    def stacks(
        self, ranks: Iterable[int], at: GroupState | Mismatch | None = None
    ) -> dict[str, tuple[str, ...]]:
        """Return where ranks are, if it is known."""
        calls = at.calls if at else {}
        found: dict[str, tuple[str, ...]] = {}
        for rank in ranks:
            ending, call = self.endings.ranks.get(rank), calls.get(rank) or self._waits_in(rank)
            stack = ending.symptoms.stack if ending else ()
            sites = (
                ending.trailer.raised_at if ending and ending.trailer else "",
                call.frame if call else "",
            )
            if stack := stack or tuple(filter(None, sites))[:1]:
                found[str(rank)] = stack
        return found

    def with_further_calls(self, verdict: HangVerdict) -> HangVerdict:
        """Add where ranks called their last collective, or which calls in C++ they are in."""
        flights = self.hang.flights.ranks
        sites = {
            str(rank): flights[rank].last_frame
            for rank in (*verdict.ranks[:2], *verdict.waiting[:1])
            if rank in flights and flights[rank].last_frame and str(rank) not in verdict.stacks
        }
        endings = {rank: self.endings.ranks.get(int(rank)) for rank in verdict.stacks}
        native = {rank: e.symptoms.native for rank, e in endings.items() if e and e.symptoms.native}
        return msgspec.structs.replace(verdict, last_calls=sites, native=native)

    def _waits_in(self, rank: int) -> Call | None:
        waits = (state for state in self.hang.stuck_groups if rank in state.waiting)
        return next((state.calls.get(rank, state.call) for state in waits), None)

    def _chain(self, ranks: Sequence[int]) -> list[tuple[int, int, str]]:
        """Follow waits back from `ranks`, the nearest first: each rank that waits once."""
        links: list[tuple[int, int, str]] = []
        reached, states = set(ranks), [state for state in self.hang.stuck_groups if state.absent]
        while near := [state for state in states if reached & {*state.absent}]:
            states = [state for state in states if state not in near]
            for state in near:
                awaited = min(reached & {*state.absent}, key=lambda rank: (rank not in ranks, rank))
                new = [waiter for waiter in state.waiting if waiter not in reached]
                links += [(waiter, awaited, words.link(state)) for waiter in new]
                reached.update(new)
        return links


def usual_call(found: Mismatch) -> Call | None:
    """Return the call of those that agree, the first one issued; without any, that of all."""
    calls = [call for rank, call in found.calls.items() if rank not in found.odd]
    return min(calls, key=lambda call: call.created_ns, default=None)


def operation(call: Call, label: str, seq: int) -> Operation:
    """Return a call as verdicts name it."""
    return Operation(
        op=call.op,
        group=label,
        seq=seq,
        step=call.step if call.step >= 0 else None,
        bytes=call.nbytes,
        dtype=call.dtype,
        call_site=call.frame,
    )


def groups_of(hang: Hang) -> Iterator[GroupWaits]:
    """Yield the first call of each group that cannot end, those first that lack ranks."""
    for found in hang.mismatched:
        first = usual_call(found)
        yield GroupWaits(
            group=found.label,
            name=found.name,
            ranks=tuple(sorted(found.calls)),
            op=first.op if first else "",
            number=found.seq,
            bytes=first.nbytes if first else None,
            waited_ns=found.waited_ns,
            waiting=found.waiting,
            different=found.odd,
            called_from=first.frame if first else "",
        )
    for state in sorted(
        hang.stuck_groups, key=lambda state: not (state.absent or state.unfinished)
    ):
        call = state.call
        yield GroupWaits(
            group=state.label,
            name=state.name,
            ranks=state.members,
            op=call.op if call else "",
            number=state.seq if call else None,
            bytes=call.nbytes if call else None,
            waited_ns=state.waited_ns or None,
            waiting=state.held_up,
            absent=state.absent,
            unfinished=state.unfinished,
            unknown=state.unknown,
            called_from=call.frame if call else "",
        )
