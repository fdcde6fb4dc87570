"""Where the writer gets everything from, and what C wrote of it already."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dsprof.trace.schema import Collective, MemorySample, Record
from dsprof.trace.writing.last_step import LastStep, Sum

Written = tuple[bytes, int, int, tuple[Sum, ...]]
"""What C wrote of several records: lines, their number, the step of the last one, and sums."""

NOTHING_WRITTEN: Written = (b"", 0, -1, ())
"""What C returns if Python has to write the next record."""


@dataclass(slots=True)
class WriterInput:
    """Where the writer gets everything from; the session fills it from the recorder."""

    records: deque[Record]
    definitions: deque[Any]
    unfinished: Callable[[], list[Collective]]
    sample_memory: Callable[[str, int], MemorySample]
    prepare: Callable[[], list[Any]]  # definitions that take I/O to find out
    prepare_late: Callable[[], list[Any]]  # the same, of what is known after the first step
    disclose: Callable[[Any], Any]  # rewrites a definition or a name before it is written
    show_life: Callable[[], None] = lambda: None  # at least every INTERVAL_S
    warn: Callable[[str], None] = lambda text: None  # prints to the log of the run
    last_step: LastStep = field(default_factory=LastStep)
    lines_in_c: Callable[..., Any] | None = None  # of an `Encoder`; None: no hook is in C
