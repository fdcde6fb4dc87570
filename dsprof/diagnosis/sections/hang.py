"""A run that is stuck or crashed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dsprof.analysis.aggregates.endings import Endings
from dsprof.analysis.aggregates.flight_recorders import FlightRecorders
from dsprof.analysis.aggregates.shared_groups import SharedGroups
from dsprof.analysis.hang.flight_recorders import dumped_apart, group_states
from dsprof.analysis.hang.model import HangReport
from dsprof.analysis.hang.verdict import hang_of, report_of
from dsprof.analysis.summary import RunSummary
from dsprof.diagnosis.parts import filled
from dsprof.diagnosis.parts.logs import FlightRow

_ROWS = 200
_RULE = "stuck-collective"


def hang(summary: RunSummary, thresholds: Mapping[str, Any]) -> HangReport | None:
    """Return what is known of a hang or crash, by the thresholds of its rule; None: nothing is."""
    endings, recorders = summary[Endings], summary[FlightRecorders]
    given = thresholds.get(_RULE)
    limits = (round(given.waited_s * 1e9), given.unfinished) if given else ()
    shared = summary[SharedGroups].rows
    report = report_of(hang_of(endings, recorders, *limits, shared=shared), endings)
    return None if report.is_healthy else report


def flights(summary: RunSummary) -> list[FlightRow]:
    """List the process groups in which something was in flight, at most 200."""
    recorders = summary[FlightRecorders]
    states = group_states(recorders)
    if dumped_apart(recorders):
        states = [replace(state, waiting=(), absent=(), unfinished=()) for state in states]
    open_ones = [s for s in states if s.in_flight or s.p2p_in_flight or s.waiting]
    return [
        filled(
            FlightRow,
            state,
            group=state.label,
            ranks=list(state.members),
            number=state.seq if state.waiting else None,
            op=state.call.op if state.call else "",
            dtype=state.call.dtype if state.call else "",
            elements=max(state.call.elements) if state.call else None,
            waiting=list(state.waiting),
            absent=list(state.absent),
            unfinished=list(state.unfinished),
            without_dump=list(state.unknown),
        )
        for state in open_ones[:_ROWS]
    ]


SECTIONS = {"flights": flights}
