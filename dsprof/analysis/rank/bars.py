"""What one rank did in one step, as bars; and what its flight recorder held."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from dsprof.trace.dumps.flight_dump import FlightDump, FlightEntry

_MEGATRON = re.compile("_(MODEL_)?PARALLEL_GROUP")
"""The common prefix of its group names: beside bars there is room for few letters."""


class Bar(NamedTuple):
    """One rectangle, in ns of the run's time line. A tuple: many are sent between processes."""

    lane: str  # "activity", "phase", "communication", "copies", "stream" or "group" and its name
    kind: str
    start_ns: int
    end_ns: int
    label: str = ""
    group: str = ""  # of ranks
    module: str = ""  # on whose behalf
    is_open: bool = False  # not ended when the record ends: drawn to the end of all ranks


@dataclass(frozen=True, slots=True)
class StepDetail:
    """One step of one rank, in ns of the run's time line."""

    start_ns: int
    end_ns: int
    bars: tuple[Bar, ...]
    left_out: int


def dumped(dump: FlightDump) -> StepDetail | None:
    """Draw the calls that a flight recorder held, a lane for each process group.

    Its times are the wall clock of its host. None where it holds none.
    """
    bars = tuple(_calls(dump))
    if not bars:
        return None
    start_ns, end_ns = min(b.start_ns for b in bars), max(b.end_ns for b in bars)
    return StepDetail(start_ns, end_ns, bars, len(dump.entries) - len(bars))


def _calls(dump: FlightDump) -> Iterator[Bar]:
    """Draw each call whose time was recorded."""
    mixed = {entry.group for entry in dump.entries if entry.is_p2p}
    for entry in dump.entries:
        if entry.created_ns > 0:
            group = dump.groups[entry.group]
            name = group.label or group.name or "unnamed"
            # The counter of a group that also sends numbers something else.
            is_counted = entry.group not in mixed and entry.seq <= group.last_completed
            is_open = dump.is_in_flight(entry) and not is_counted
            yield Bar(
                lane=f"group {_MEGATRON.sub('', name)}",
                kind=entry.op,
                start_ns=entry.created_ns,
                end_ns=max(entry.completed_ns, entry.created_ns),
                label=_said(entry, is_open=is_open),
                group=name,
                is_open=is_open,
            )


def _said(entry: FlightEntry, *, is_open: bool) -> str:
    """Describe a call by its number, size and state."""
    elements = sum(map(prod, entry.input_sizes))
    words = [
        f"number {entry.seq}",
        f"{elements:,} elements of {entry.dtype}" if entry.dtype else "",
        f"in flight, {entry.state}" if is_open else "" if entry.completed_ns else "end unknown",
        entry.frame,
    ]
    return ", ".join(filter(None, words))
