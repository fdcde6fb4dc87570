"""The process beside training ends after the run, however that ends."""

from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from dsprof.live import beside
from dsprof.live.watching import Watched
from tests.live.test_screen import rank, run


def ended(monkeypatch: pytest.MonkeyPatch, *states: tuple[float, Any], is_done: bool) -> list[bool]:
    """Show states of a run at moments in s; return whether it has ended after each."""
    now, event, found = [0.0], Event(), []
    monkeypatch.setattr(beside, "monotonic", lambda: now[0])
    judge = SimpleNamespace(is_done=is_done)
    end = beside.End(cast(Watched, SimpleNamespace(judge=judge)), event)
    for now[0], state in states:
        end.show(state)
        found.append(event.is_set())
    return found


def silent(at_rank: int) -> Any:
    return msgspec.structs.replace(rank(at_rank), state="silent")


@pytest.mark.parametrize("is_done", [False, True])
def test_it_waits_for_the_last_judgement(monkeypatch: pytest.MonkeyPatch, is_done: bool) -> None:
    over = msgspec.structs.replace(run(rank(0)), is_over=True)
    assert ended(monkeypatch, (1, run(rank(0))), (2, over), is_done=is_done) == [False, is_done]


def test_it_ends_a_minute_after_the_last_rank_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    one, none = run(rank(0), silent(1)), run(silent(0), silent(1))
    states = (10, one), (100, one), (150, none), (161, none)
    assert ended(monkeypatch, *states, is_done=False) == [False, False, False, True]
