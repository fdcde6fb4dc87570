"""Files of other tools: flight recorder dumps, logs, calls that they timed."""

from __future__ import annotations

from functools import partial
from typing import Any

from dsprof.diagnosis.parts.logs import FlightRow, LoggedCallRow, LoggedFact, LogMarkRow
from dsprof.findings import formatting as fmt
from dsprof.reports.tables.listing import Section, Shown, listing


def _first(row: FlightRow) -> str:
    return "" if row.number is None else f"{row.op} {fmt.count(row.number)}"


_FLIGHT: tuple[Shown[FlightRow], ...] = (
    Shown("Group", lambda row: row.group),
    Shown("Name", lambda row: row.name),
    Shown("Ranks", lambda row: fmt.ranks(row.ranks)),
    Shown("In flight", lambda row: row.in_flight, "count"),
    Shown("Sends and receives", lambda row: row.p2p_in_flight, "count"),
    Shown("First stuck collective", _first),
    Shown("Elements", lambda row: row.elements, "count"),
    Shown("Type", lambda row: row.dtype),
    Shown("Called by", lambda row: fmt.ranks(row.waiting)),
    Shown("Not called by", lambda row: fmt.ranks(row.absent)),
    Shown("Not finished by", lambda row: fmt.ranks(row.unfinished)),
    Shown("Without a dump", lambda row: fmt.ranks(row.without_dump)),
)
flights = partial(listing, "Earliest wait first", _FLIGHT)
"""Process groups in which something was in flight when flight recorders were dumped."""


_FACT: tuple[Shown[LoggedFact], ...] = (
    Shown("Of", lambda row: row.kind),
    Shown("Value", lambda row: row.value),
    Shown("Ranks", lambda row: fmt.ranks(row.ranks)),
    Shown("Lines", lambda row: row.lines, "count"),
)
logged = partial(listing, "As the logs say", _FACT)
"""Statements of libraries on themselves, and on which ranks."""


_CALL: tuple[Shown[LoggedCallRow], ...] = (
    Shown("By", lambda row: row.source),
    Shown("Operation", lambda row: row.op),
    Shown("Called from", lambda row: row.caller),
    Shown("Message", lambda row: row.message_bytes, "bytes"),
    Shown("Calls", lambda row: row.calls, "count"),
    Shown("Time", lambda row: row.total_ns, "ns"),
    Shown("Mean", lambda row: row.mean_ns, "ns"),
    Shown("algbw", lambda row: row.algbw, "rate"),
    Shown("busbw", lambda row: row.busbw, "rate"),
    Shown("Wait for the slowest", lambda row: row.straggler_ns, "ns"),
    Shown("Note", lambda row: row.note),
)
logged_calls = partial(listing, "Reported by another tool, not measured by dsprof", _CALL)


_MARK: tuple[Shown[LogMarkRow], ...] = (
    Shown("At", lambda row: row.place, "share"),
    Shown("Rank", lambda row: row.rank, "count"),
    Shown("Severity", lambda row: "error" if row.is_error else "warning"),
    Shown("Message", lambda row: row.text),
)
log_marks = partial(listing, "", _MARK)
"""Warnings and errors of a log in its order."""


SECTIONS: tuple[Section[Any], ...] = (
    Section(
        "messages",
        "Warnings and errors of the log",
        "In the order of the log. Launchers may change the order of lines of different ranks.",
        lambda diagnosis: diagnosis.log_marks,
        log_marks,
        nav="Log",
    ),
)
