"""The page of torch's debug server, as one rank answers."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from dsprof.recording import session
from dsprof.recording.recorder.live_state import LiveState
from dsprof.trace.scope import OUTSIDE, Scope
from tests.factories.trace import header

pytest.importorskip("tabulate", reason="torch's debug server needs it")
pytest.importorskip("torch.distributed.debug._debug_handlers", reason="torch has it from 2.13 on")


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveState]:
    state = LiveState()
    recorder = SimpleNamespace(in_flight=SimpleNamespace(state=state))
    monkeypatch.setattr(session, "current", lambda: SimpleNamespace(recorder=recorder))
    assert not state.open(header(), lambda one: one)
    yield state
    state.close()


def test_the_page_says_where_training_stands(state: LiveState) -> None:
    from dsprof.api.torch_debug import _lines

    state.beat(OUTSIDE)
    assert _lines() == ["before the first step", "no collective in flight"]
    state.beat(Scope(step=3, micro_step=0, phase="forward"))
    assert _lines() == ["in step 3", "no collective in flight"]
