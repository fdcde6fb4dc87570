"""The queue of the writer: records, and descriptions of what they refer to."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from dsprof.recording.recorder.hot_state import HotState, compiled
from dsprof.trace.schema import Record

MOST = 200_000
"""Records that may wait; more are dropped and counted."""


class Outbox:
    """Takes finished records from hooks in any thread; the writer's thread takes them out.

    Without a lock: both ends of the queue are safe. `dropped` may miss one where two threads drop
    at the same moment.
    """

    def __init__(self, hot: HotState) -> None:
        self._hot = hot
        hot.overflow = self.add
        self.told: Callable[[Any], None] = _nobody  # of each description, at once
        self.begin_again()

    def begin_again(self) -> None:
        """Use other queues for a new trace: the writer of the one before empties its own."""
        self.records: deque[Record] = deque() if compiled is None else compiled.Records()
        self._hot.records = self.records
        self.definitions: deque[Any] = deque()  # structs of dsprof.trace.schema, written first
        self.dropped = 0

    def add(self, record: Record) -> None:
        """Hand a finished record to the writer."""
        if len(self.records) < MOST:
            self.records.append(record)
        else:
            self.dropped += 1

    def define(self, definition: Any) -> None:
        """Hand the writer a description (group, site, engine, hook status)."""
        self.definitions.append(definition)
        self.told(definition)


def _nobody(definition: Any) -> None:
    """Ignore it: there is no listener."""
