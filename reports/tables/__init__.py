"""Tables of a diagnosis as typed data, for any renderer."""

from dsprof.reports.tables.call_sites import call_sites
from dsprof.reports.tables.communication import (
    communication,
    copies,
    fetches,
    flushes,
    group_name,
    last_arrivals,
    per_step,
    total_bytes,
    transfers,
)
from dsprof.reports.tables.environment import (
    configuration,
    differences,
    environment,
    run,
    thresholds,
)
from dsprof.reports.tables.flight_recorders import flights, logged, logged_calls
from dsprof.reports.tables.hangs import waits
from dsprof.reports.tables.listing import MAX_ROWS
from dsprof.reports.tables.memory import memory, snapshots
from dsprof.reports.tables.time import annotated, devices, steps, timeline

__all__ = [
    "MAX_ROWS",
    "annotated",
    "call_sites",
    "communication",
    "configuration",
    "copies",
    "devices",
    "differences",
    "environment",
    "fetches",
    "flights",
    "flushes",
    "group_name",
    "last_arrivals",
    "logged",
    "logged_calls",
    "memory",
    "per_step",
    "run",
    "snapshots",
    "steps",
    "thresholds",
    "timeline",
    "total_bytes",
    "transfers",
    "waits",
]
