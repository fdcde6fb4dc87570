"""What waits for the writer never takes more memory than it may."""

from __future__ import annotations

import pytest

from dsprof.recording.recorder import outbox as module
from dsprof.recording.recorder.hot_state import HotState
from dsprof.recording.recorder.outbox import Outbox
from dsprof.trace.schema import Phase


def test_a_full_outbox_drops_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 1)
    outbox = Outbox(HotState())
    for _ in range(3):
        outbox.add(Phase(0, 1, 0, name="forward", thread=1))
    assert len(outbox.records) == 1
    assert outbox.dropped == 2
