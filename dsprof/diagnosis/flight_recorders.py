"""The section on flight recorder dumps."""

from __future__ import annotations

from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.run.flight_recorders import group_states
from dsprof.diagnosis import model

_ROWS = 200


def flights(facts: FlightRecorders) -> list[model.FlightRow]:
    """List the process groups in which something was in flight, at most 200."""
    held = [s for s in group_states(facts) if s.in_flight or s.p2p_in_flight or s.waiting]
    return [
        model.FlightRow(
            group=state.label,
            name=state.name,
            ranks=list(state.members),
            in_flight=state.in_flight,
            p2p_in_flight=state.p2p_in_flight,
            number=state.seq if state.waiting else None,
            op=state.call.op if state.call else "",
            dtype=state.call.dtype if state.call else "",
            elements=max(state.call.elements) if state.call else None,
            waiting=list(state.waiting),
            absent=list(state.absent),
            unfinished=list(state.unfinished),
            without_dump=list(state.unknown),
        )
        for state in held[:_ROWS]
    ]
