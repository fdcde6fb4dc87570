"""Tables of stuck-collective: the groups that are held up, and what ranks did last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dsprof.analysis.aggregates.endings import Ending, LastCall
from dsprof.analysis.aggregates.flights import Flights
from dsprof.analysis.flights import GroupState
from dsprof.rules.rule import Column, Table
from dsprof.rules.wording import named

_ROWS = 32


def last_calls(ranks: Sequence[int], flights: Flights) -> Table:
    """Say what ranks did last, as their dumps tell."""
    return Table(
        columns=(Column("rank"), Column("collectives in flight", "count"), Column("called last")),
        rows=tuple(
            (
                rank,
                sum(len(group.in_flight) for group in flights.ranks[rank].groups.values()),
                flights.ranks[rank].last_frame or "the dump holds no stacks",
            )
            for rank in ranks[:_ROWS]
        ),
        caption="What these ranks did last",
    )


def held_up_groups(states: Sequence[GroupState]) -> Table:
    """Say of groups who waits in them, and for whom."""
    return Table(
        columns=(
            Column("group"),
            Column("name"),
            Column("number", "count"),
            Column("operation"),
            Column("elements", "count"),
            Column("type"),
            Column("called from"),
            Column("called by"),
            Column("not called by"),
            Column("not finished by"),
            Column("waited", "ns"),
        ),
        rows=tuple(
            (
                state.label,
                state.name,
                state.seq,
                state.call.op if state.call else "",
                max(state.call.elements) if state.call else None,
                state.call.dtype if state.call else "",
                state.call.frame if state.call else "",
                named(state.waiting) if state.waiting else "",
                named(state.absent) if state.absent else "",
                named(state.unfinished) if state.unfinished else "",
                state.waited_ns or None,
            )
            for state in states[:_ROWS]
        ),
        caption="Groups that are held up, those first that began to wait first",
    )


def last_completed(endings: Mapping[int, Ending], ranks: Iterable[int]) -> Table:
    """Say how the record of each rank ended, and after which collective."""
    shown = [(rank, endings[rank]) for rank in ranks if rank in endings][:_ROWS]
    latest_ns = max((ending.alive_ns for _, ending in shown), default=0)
    return Table(
        columns=(
            Column("rank"),
            Column("ended by"),
            Column("last completed collective"),
            Column("step", "count"),
            Column("called from"),
            Column("last record before the latest", "ns"),
        ),
        rows=tuple(
            (
                rank,
                how(ending),
                called(ending.last),
                ending.last.step if ending.last and ending.last.step >= 0 else None,
                ending.last_frame,
                latest_ns - ending.alive_ns,
            )
            for rank, ending in shown
        ),
        caption="How the record of each rank ended",
    )


def how(ending: Ending) -> str:
    """Say how the record of a rank ended."""
    if ending.trailer is None:
        return "no trailer: killed, crashed, or still running"
    if ending.trailer.exception:
        return ending.trailer.exception
    return {"exit": "end of the process", "interrupted": "Ctrl-C"}.get(
        ending.trailer.reason, ending.trailer.reason
    )


def called(last: LastCall | None) -> str:
    """Name the last collective of a rank."""
    if last is None:
        return "none"
    unseen = "" if last.is_completed else " (called; completion not recorded)"
    return f"{last.op} {last.number:,} of {last.group}{unseen}"
