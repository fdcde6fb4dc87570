"""The process beside training ends after the run, however that ends."""

import subprocess
import sys
from pathlib import Path
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


def test_it_waits_for_a_restart_of_ranks_that_were_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    over = msgspec.structs.replace(run(rank(0, state="gone")), is_over=True)
    states = (1, run(rank(0))), (20, over), (62, over)
    assert ended(monkeypatch, *states, is_done=True) == [False, False, True]


def test_after_a_restart_alerts_are_sent_by_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "_TURNS", 1)
    monkeypatch.setattr(beside, "sleep", lambda _: None)
    program = """\
import sys
from pathlib import Path
from dsprof.live.beside import is_first
print(is_first(Path(sys.argv[1])), flush=True)
input()
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert not beside.is_first(tmp_path)
        other.communicate("\n")
    assert beside.is_first(tmp_path)


def test_where_no_lock_can_be_had_alerts_are_sent(tmp_path: Path) -> None:
    assert beside.is_first(tmp_path / "gone")
