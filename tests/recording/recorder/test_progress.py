"""Steps and phases follow each other, whatever threads and signal handlers do meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dsprof.hooks.base import nothing
from dsprof.recording.recorder import progress as module
from dsprof.recording.recorder.progress import Progress
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Phase, Step
from dsprof.trace.scope import Scope
from tests.handed_over import handed_over


def test_phases_and_steps(recorder: Recorder) -> None:
    progress = recorder.progress
    entered = progress.enter("forward")
    assert progress.scope == Scope(0, 0, "forward")
    progress.leave(entered)
    progress.end_micro_step()
    assert progress.scope == Scope(0, 1, "")
    progress.leave(progress.enter("step"))
    progress.end_step("deepspeed")
    assert progress.scope == Scope(1, 0, "")
    phases = handed_over(recorder, Phase)
    steps = handed_over(recorder, Step)
    assert [(p.name, p.step, p.micro_step) for p in phases] == [
        ("forward", 0, 0),
        ("step", 0, 1),
    ]
    assert [(s.step, s.micro_steps, s.source) for s in steps] == [(0, 2, "deepspeed")]


def test_phases_that_do_not_end_in_turn_leave_none_open(recorder: Recorder) -> None:
    progress = recorder.progress
    first, second = (
        progress.enter("backward", engine=0),
        progress.enter("backward", engine=1),
    )
    progress.leave(first)
    assert (progress.scope.phase, progress.scope.engine) == ("backward", 1)
    progress.leave(second)
    assert (progress.scope.phase, progress.scope.engine) == ("", -1)
    assert [r.engine for r in handed_over(recorder, Phase)] == [0, 1]


def test_the_best_source_of_steps_wins(recorder: Recorder) -> None:
    for source in ("optimizer", "deepspeed", "optimizer", "deepspeed", "user", "deepspeed", "user"):
        recorder.progress.end_step(source)
    steps = handed_over(recorder, Step)
    assert [step.source for step in steps] == ["optimizer", "deepspeed", "user"]
    assert [step.step for step in steps] == [0, 1, 2]


def test_steps_follow_each_other_without_a_gap(recorder: Recorder) -> None:
    for _ in range(3):
        recorder.progress.end_step("user")
    steps = handed_over(recorder, Step)
    assert [s.start_ns for s in steps[1:]] == [s.end_ns for s in steps[:-1]]


def test_who_looks_again_is_told_of_ever_fewer_steps(recorder: Recorder) -> None:
    told: list[int] = []
    recorder.progress.rare_step_listeners.append(told.append)
    for _ in range(20):
        recorder.progress.end_step("user")
    assert told == [0, 1, 3, 7, 15]


class Pausing(Progress):
    """Runs something of another thread in the middle of each change of the scope."""

    meanwhile = staticmethod(nothing)

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name == "scope":
            meanwhile, self.meanwhile = super().__getattribute__("meanwhile"), nothing
            meanwhile()  # between what is read and what is written
        return value


def in_another_thread(call: Callable[[], object]) -> Callable[[], None]:
    """Return what starts `call` in a thread, and waits until it is over or has to wait itself."""

    def start() -> None:
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(0.05)

    return start


def steps_of(recorder: Recorder) -> list[int]:
    return [record.step for record in handed_over(recorder, Step)]


@pytest.mark.parametrize("where", [in_another_thread, lambda handler: handler])
@pytest.mark.parametrize("change", ["enter", "leave", "end_micro_step", "end_step"])
@pytest.mark.parametrize("other", ["phase", "micro-step", "step"])
def test_no_change_is_lost_to_another_thread_or_a_signal_handler(
    recorder: Recorder,
    where: Callable[[Callable[[], object]], Callable[[], None]],
    change: str,
    other: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "compiled", None)  # in C nothing comes between
    progress = recorder.progress = Pausing(recorder.outbox, recorder.in_flight, recorder.fail)
    outer = progress.enter("forward")
    changes: dict[str, Callable[[], object]] = {
        "enter": lambda: progress.enter("mine"),
        "leave": lambda: progress.leave(outer),
        "end_micro_step": progress.end_micro_step,
        "end_step": lambda: progress.end_step("user"),
    }
    others: dict[str, Callable[[], object]] = {
        "phase": lambda: progress.leave(progress.enter("other")),
        "micro-step": progress.end_micro_step,
        "step": lambda: progress.end_step("user"),
    }
    done = threading.Event()
    progress.meanwhile = where(lambda: (others[other](), done.set()))
    mine = changes[change]()
    assert done.wait(10)
    phase = {"enter": "mine", "leave": ""}.get(change, "forward")
    assert progress.scope.phase == phase
    ended = [change, other].count("end_step") + [change, other].count("step")
    assert (progress.scope.step, steps_of(recorder)) == (ended, list(range(ended)))
    micro_steps = [change, other].count("end_micro_step") + [change, other].count("micro-step")
    assert ended or progress.scope.micro_step == micro_steps
    if change == "enter":
        progress.leave(mine)
    if change != "leave":
        progress.leave(outer)
    assert (progress.scope.phase, progress._hot.phases) == ("", [])


@pytest.fixture
def eager_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switches")
def test_phases_and_steps_of_many_threads_are_all_counted(recorder: Recorder) -> None:
    progress = recorder.progress
    threads, rounds = 8, 500

    def train() -> None:
        for _ in range(rounds):
            progress.leave(progress.enter("forward"))
            progress.end_step("user")

    crowd = [threading.Thread(target=train) for _ in range(threads)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    assert sum(isinstance(record, Phase) for record in handed_over(recorder)) == threads * rounds
    assert steps_of(recorder) == list(range(threads * rounds))
    assert (progress.scope.phase, progress._hot.phases) == ("", [])


def test_a_phase_that_is_open_in_a_forked_child_ends_without_the_lock(recorder: Recorder) -> None:
    progress = recorder.progress
    entered = progress.enter("forward")
    held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with progress._lock:
            held.set()
            may_end.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if not child:
        signal.alarm(10)  # rather than waiting for good
        recorder.abandon()
        progress.leave(entered)
        progress.end_micro_step()
        progress.end_step("user")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    may_end.set()
    holder.join()
    assert status == 0


def test_what_ends_after_a_recording_leaves_nothing_behind(recorder: Recorder) -> None:
    progress = recorder.progress
    entered = progress.enter("forward")
    recorder.stop()
    before = progress.scope
    progress.leave(entered)
    progress.end_micro_step()
    progress.end_step("user")
    assert (list(handed_over(recorder)), progress.scope, progress.steps) == (
        [],
        before,
        0,
    )


def test_what_began_in_the_trace_before_is_not_of_this_one(recorder: Recorder) -> None:
    """Its calling sites have other numbers now, or none."""
    progress = recorder.progress
    outer, inner = progress.enter("backward", site=7), progress.enter("forward")
    assert progress.scope.site == 0
    progress.leave(inner)
    assert progress.scope.site == 7
    recorder.begin_again()
    assert progress.scope.site == 0
    entered = progress.enter("backward", site=8)
    progress.leave(outer)
    assert progress.scope.site == 8
    progress.leave(entered)
    assert progress.scope == Scope(0, 0, "")
    assert [one.name for one in handed_over(recorder, Phase)] == ["backward"]
