"""Tables of a diagnosis as typed data, for any renderer."""

from itertools import chain
from typing import Any

from dsprof.plugins.parts import in_folder
from dsprof.reports.tables.call_sites import call_sites
from dsprof.reports.tables.communication import (
    bucket_fill,
    communication,
    copies,
    fetches,
    flushes,
    group_name,
    groups,
    last_arrivals,
    operation,
    peer_traffic,
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
from dsprof.reports.tables.epochs import epochs
from dsprof.reports.tables.flight_recorders import flights, logged, logged_calls
from dsprof.reports.tables.hangs import waits
from dsprof.reports.tables.listing import MAX_ROWS, Section
from dsprof.reports.tables.memory import memory, snapshots, stacks
from dsprof.reports.tables.time import (
    annotated,
    devices,
    history,
    kept_steps,
    steps,
    time_ops,
    time_spans,
    timeline,
)

__all__ = [
    "MAX_ROWS",
    "SECTIONS",
    "annotated",
    "bucket_fill",
    "call_sites",
    "communication",
    "configuration",
    "copies",
    "devices",
    "differences",
    "environment",
    "epochs",
    "fetches",
    "flights",
    "flushes",
    "group_name",
    "groups",
    "history",
    "kept_steps",
    "last_arrivals",
    "logged",
    "logged_calls",
    "memory",
    "operation",
    "peer_traffic",
    "per_step",
    "run",
    "snapshots",
    "stacks",
    "steps",
    "thresholds",
    "time_ops",
    "time_spans",
    "timeline",
    "total_bytes",
    "transfers",
    "waits",
]

SECTIONS: tuple[Section[Any], ...] = tuple(
    sorted(chain.from_iterable(in_folder(__name__, "SECTIONS")), key=lambda one: one.order)
)
"""Sections of the page that are one table each: any module here may have `SECTIONS`."""
