"""Waits as evidence: for which bucket, module or line, and how long before it was started."""

from __future__ import annotations

from dsprof.analysis.aggregates.wait_causes import Await, Awaited, WaitCauses
from dsprof.findings.finding import Column, Table
from dsprof.findings.wording import duration

Waits = list[tuple[Awaited, Await]]

_ROWS = 8


def name_of(what: Awaited) -> str:
    """Return what was waited for, in words: "bucket 2 of DDP, all_reduce in backward"."""
    owner = f"{what.name} of {what.library}" if what.library and what.name else what.name
    if what.purpose == "parameters" and not what.library:
        owner = f"parameters {what.name}".strip()
    phase = f" in {what.phase}" if what.phase else ""
    return ", ".join(part for part in (owner, f"{what.family}{phase}") if part)


def longest_wait(awaits: WaitCauses, *, only_async: bool = False) -> str:
    """Say in one sentence what blocked the ranks longest, and why; "" if unknown."""
    found = [row for row in awaits.longest(_ROWS) if row[0].is_async or not only_async]
    if not found:
        return ""
    what, sums = found[0]
    held = duration((sums.blocked.exposed_ms_per_step or 0.0) * 1e6)
    return f"The longest wait, {held} per step, is for {name_of(what)}: {_why(what, sums)}."


def _why(what: Awaited, sums: Await) -> str:
    if not what.is_async:
        return "the call itself waits"
    started = f"it starts {duration(sums.lead_ms * 1e6)} before"
    if what.library == "DDP" and what.name != "bucket 0":
        return f"{started} DDP waits, for all buckets together"
    return f"{started} the wait, and is in flight for {duration(sums.in_flight_ms * 1e6)}"


def waits_table(rows: Waits) -> Table:
    """List what was waited for, in the order given."""
    return Table(
        columns=(
            Column("waiting for"),
            Column("calls per step", "count"),
            Column("bytes per step", "bytes"),
            Column("blocked per step", "ms"),
            Column("started before the wait", "ms"),
            Column("in flight", "ms"),
        ),
        rows=tuple(
            (
                name_of(what),
                round(sums.blocked.calls_per_step, 2),
                None if sums.blocked.unsized else round(sums.blocked.bytes_per_step),
                sums.blocked.exposed_ms_per_step,
                sums.lead_ms if what.is_async else None,
                sums.in_flight_ms or None,
            )
            for what, sums in rows
        ),
        caption="Longest blocked time first; the last two columns are means per call",
    )


def longest_waits(awaits: WaitCauses) -> Table:
    """List what held the ranks longest."""
    return waits_table(awaits.longest(_ROWS))
