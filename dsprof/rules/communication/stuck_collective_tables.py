"""Tables of stuck-collective: the groups that are held up, and what ranks did last."""

from __future__ import annotations

from collections.abc import Sequence

from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.run.flight_recorders import GroupState
from dsprof.findings.finding import Column, Table
from dsprof.findings.wording import named

_ROWS = 32


def last_calls(ranks: Sequence[int], flights: FlightRecorders) -> Table:
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
        caption="Blocked groups, earliest first",
    )
