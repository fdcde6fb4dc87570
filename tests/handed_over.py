"""What hooks have recorded, as the writer gets it."""

from __future__ import annotations

from typing import Any

from dsprof.recording.recorder.hot_state import compiled
from dsprof.recording.recorder.recorder import Recorder


def handed_over(recorder: Recorder) -> list[Any]:
    """Return the records, and leave them where they are."""
    made = (lambda record: record) if compiled is None else compiled.made
    return [made(record) for record in list(recorder.outbox.records)]
