"""What hooks described, found by the numbers in records."""

from __future__ import annotations

from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Collective, Group


def group_of(recorder: Recorder, record: Collective) -> Group:
    """The process group of a collective."""
    return {d.id: d for d in recorder.outbox.definitions if isinstance(d, Group)}[record.group]
