"""Beside a profiler of the user none is opened, and one that the user starts takes its place."""

from __future__ import annotations

import threading
from unittest.mock import patch

import pytest
import torch
from torch.autograd import profiler as torch_functions
from torch.autograd import profiler_legacy
from torch.profiler import profile, schedule

from dsprof.recording.capture.profiler import window
from tests.recording.capture.profiled_run import CPU, Run, runs

run = pytest.fixture(runs)


def test_a_profiler_that_other_code_ended_is_not_written(run: Run) -> None:
    run.window.want(range(1, 3))
    run.train(1)
    torch._C._autograd._disable_profiler()
    run.train(2)
    run.wait_until_written()
    assert not run.path.exists()
    assert len(run.failures) == 1


@pytest.mark.filterwarnings("ignore:.*profiler_legacy")
def test_the_legacy_profiler_takes_its_place(run: Run) -> None:
    run.window.want(range(1, 10))
    run.train(2)
    with profiler_legacy.profile() as theirs:
        torch.ones(3).mul_(2)
    assert "aten::mul_" in [event.name for event in theirs.function_events]
    assert run.end().count("aten::add_") == 1


@pytest.mark.filterwarnings("ignore:.*profiler_legacy")
@pytest.mark.parametrize("is_seen", [True, False])
def test_none_is_opened_beside_the_legacy_profiler(run: Run, is_seen: bool) -> None:
    if not is_seen:  # as one that has begun before the recording
        run.window._others.remove()
    with profiler_legacy.profile() as theirs:
        run.window.want(range(1, 3))
        run.train(4)
    assert "aten::add_" in [event.name for event in theirs.function_events]
    assert run.end() == []
    assert run.notes == ["torch.profiler did not run from step 1 on: another profiler is active"]


def test_a_profiler_that_warms_up_takes_its_place(run: Run) -> None:
    run.window.want(range(1, 3))
    run.train(2)
    with profile(activities=CPU, schedule=schedule(wait=0, warmup=2, active=1)):
        run.wait_until_written()
        run.window.want(range(3, 5))
        run.train(5)
        assert not run.is_open()
    assert "another profiler is active" in run.notes[-1]


def test_a_profiler_of_the_user_in_the_same_thread_takes_its_place(run: Run) -> None:
    run.window.want(range(1, 10))
    run.train(2)
    with profile(activities=CPU) as theirs:
        assert not run.is_open()
        run.train(3)
    run.train(10)
    assert "aten::add_" in [event.key for event in theirs.key_averages()]
    assert run.end().count("aten::add_") == 1


def test_a_profiler_of_another_thread_waits_for_its_end(run: Run) -> None:
    seen: list[str] = []

    def use() -> None:
        with profile(activities=CPU) as theirs:
            torch.ones(3).mul_(2)
        seen.extend(event.key for event in theirs.key_averages())

    thread = threading.Thread(target=use)
    with patch.object(window, "_MOST_STEPS", 1 << 40):
        run.window.want(range(1, 1 << 40))
    run.train(3)
    thread.start()
    while thread.is_alive():
        run.train(1)
    assert "aten::mul_" in seen
    assert "aten::add_" in run.end()


def test_a_profiler_of_another_thread_fails_while_the_main_thread_is_blocked(run: Run) -> None:
    said: list[str] = []

    def use() -> None:
        try:
            profile(activities=CPU).start()
        except RuntimeError as error:
            said.append(str(error))

    run.window.want(range(1, 3))
    run.train(1)
    with patch.object(window, "_PATIENCE_S", 0):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
    run.train(10)
    assert "dsprof profiles the main thread" in said[0]
    run.wait_until_written()
    run.window.want(range(12, 13))
    run.train(2)
    assert "aten::add_" in run.end()
    assert run.notes == [f"torch.profiler ran from step {step} on" for step in (1, 12)]


def test_a_profiler_of_the_user_that_does_not_start_leaves_the_next_window(run: Run) -> None:
    with pytest.raises(TypeError):
        torch_functions._enable_profiler("no configuration", set())
    run.window.want(range(1, 3))
    run.train(1)
    assert run.is_open()


def test_none_is_opened_beside_a_profiler_of_the_user(run: Run) -> None:
    with profile(activities=CPU):
        run.window.want(range(1, 3))
        run.train(4)
    assert run.end() == []
    assert run.notes == ["torch.profiler did not run from step 1 on: another profiler is active"]


def test_none_is_opened_beside_one_that_warms_up(run: Run) -> None:
    with profile(activities=CPU, schedule=schedule(wait=0, warmup=2, active=1)) as theirs:
        run.window.want(range(1, 3))
        run.train(1)
        assert not run.is_open()
        theirs.step()
        theirs.step()
        torch.ones(3).mul_(2)
    assert "aten::mul_" in [event.key for event in theirs.key_averages()]


def test_none_is_opened_beside_one_that_python_does_not_see(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETO_USE_DAEMON", "1")
    run.window.want(range(1, 3))
    run.train(2)
    assert not run.is_open()


def test_none_is_opened_outside_the_main_thread(run: Run) -> None:
    run.window.want(range(1, 3))
    thread = threading.Thread(target=run.train, args=(5,))
    thread.start()
    thread.join()
    assert run.end() == []
    assert "not the main thread" in run.notes[0]
