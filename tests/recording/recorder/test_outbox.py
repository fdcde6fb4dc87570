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


def test_records_come_out_in_order_however_many_wait() -> None:
    outbox = Outbox(HotState())
    added, taken = 0, 0
    for more, fewer in ((40, 30), (60, 5), (300, 365)):
        for _ in range(more):
            outbox.add(Phase(added, added, 0))
            added += 1
        assert [record.start_ns for record in outbox.records] == list(range(taken, added))
        for _ in range(fewer):
            assert outbox.records.popleft().start_ns == taken
            taken += 1
    assert added == taken
    assert not outbox.records
    with pytest.raises(IndexError):
        outbox.records.popleft()
    outbox.add(Phase(0, 1, 0))
    outbox.records.clear()
    assert list(outbox.records) == []


def test_a_record_that_is_put_back_is_the_oldest_again() -> None:
    records = Outbox(HotState()).records
    for turn in range(200):
        records.append(Phase(2 * turn, 0, 0))
        records.append(Phase(2 * turn + 1, 0, 0))
        first = records.popleft()
        assert first.start_ns == turn
        records.appendleft(first)
        assert records.popleft() is first
    assert [record.start_ns for record in records] == list(range(200, 400))
    for at in range(199, -1, -1):  # also when the queue has to grow
        records.appendleft(Phase(at, 0, 0))
    assert [record.start_ns for record in records] == list(range(400))
