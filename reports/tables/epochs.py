"""The epochs of a run that was started more than once."""

from __future__ import annotations

from dsprof.diagnosis.parts.epochs import EpochRow, Epochs
from dsprof.findings import formatting as fmt
from dsprof.findings.finding import Table
from dsprof.reports.tables.listing import Shown, listing

_EPOCH: tuple[Shown[EpochRow], ...] = (
    Shown("Epoch", lambda row: f"{row.number} (shown)" if row.is_shown else str(row.number)),
    Shown("Started (UTC)", lambda row: row.started[5:19].replace("T", " ")),
    Shown("Ranks", lambda row: row.world_size, "count"),
    Shown("Hosts", lambda row: len(row.hosts), "count"),
    Shown("Steps", lambda row: row.steps, "count"),
    Shown("From step", lambda row: row.first_step, "count"),
    Shown("Duration", lambda row: row.end_ns - row.start_ns, "long_ns"),
    Shown("Gap before it", lambda row: row.gap_ns if row.number > 1 else fmt.NOTHING, "long_ns"),
    Shown("Repeated steps", lambda row: row.repeated_steps, "count"),
    Shown("End", lambda row: f"{row.end} ({fmt.named_ranks(row.ranks)})" if row.ranks else row.end),
)


def epochs(found: Epochs) -> Table:
    """Epochs in the order of their starts; how many hosts, where any had several."""
    has_hosts = any(len(row.hosts) > 1 for row in found.rows)
    columns = [column for column in _EPOCH if has_hosts or column.label != "Hosts"]
    unread = f"; {fmt.count(found.unread)} earlier ones are not read" if found.unread else ""
    return listing(f"Epochs of the run{unread}", columns, found.rows)
