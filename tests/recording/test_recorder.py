"""Steps and phases follow each other, and the recorder never holds more than it may."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from dsprof.events import Scope
from dsprof.hooks.base import Hook, nothing
from dsprof.recording import recorder as module
from dsprof.recording.recorder import Recorder
from dsprof.trace.schema import Collective, Phase, Step


@pytest.fixture
def recorder() -> Recorder:
    recorder = Recorder(lambda: True)
    assert recorder.arm()
    return recorder


def test_a_full_buffer_drops_and_counts(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BUFFER_RECORDS", 1)
    for _ in range(3):
        recorder.add(Phase(0, 1, 0, name="forward", thread=1))
    assert len(recorder.buffer) == 1
    assert recorder.dropped == 2


def test_phases_and_steps(recorder: Recorder) -> None:
    entered = recorder.enter("forward")
    assert recorder.scope == Scope(0, 0, "forward")
    recorder.leave(entered)
    recorder.end_micro_step()
    assert recorder.scope == Scope(0, 1, "")
    recorder.leave(recorder.enter("step"))
    recorder.end_step("deepspeed")
    assert recorder.scope == Scope(1, 0, "")
    phases = [r for r in recorder.buffer if isinstance(r, Phase)]
    steps = [r for r in recorder.buffer if isinstance(r, Step)]
    assert [(p.name, p.step, p.micro_step) for p in phases] == [
        ("forward", 0, 0),
        ("step", 0, 1),
    ]
    assert [(s.step, s.micro_steps, s.source) for s in steps] == [(0, 2, "deepspeed")]


def test_phases_that_do_not_end_in_turn_leave_none_open(recorder: Recorder) -> None:
    first, second = recorder.enter("backward", engine=0), recorder.enter("backward", engine=1)
    recorder.leave(first)
    assert (recorder.scope.phase, recorder.scope.engine) == ("backward", 1)
    recorder.leave(second)
    assert (recorder.scope.phase, recorder.scope.engine) == ("", -1)
    assert [r.engine for r in recorder.buffer if isinstance(r, Phase)] == [0, 1]


def test_the_best_source_of_steps_wins(recorder: Recorder) -> None:
    for source in ("optimizer", "deepspeed", "optimizer", "deepspeed", "user", "deepspeed", "user"):
        recorder.end_step(source)
    steps = [r for r in recorder.buffer if isinstance(r, Step)]
    assert [step.source for step in steps] == ["optimizer", "deepspeed", "user"]
    assert [step.step for step in steps] == [0, 1, 2]


def test_steps_follow_each_other_without_a_gap(recorder: Recorder) -> None:
    for _ in range(3):
        recorder.end_step("user")
    steps = [r for r in recorder.buffer if isinstance(r, Step)]
    assert [s.start_ns for s in steps[1:]] == [s.end_ns for s in steps[:-1]]


def test_arming_fails_for_good_when_the_session_does() -> None:
    def broken() -> bool:
        raise OSError("no such thing")

    recorder = Recorder(broken)
    assert not recorder.arm()
    assert recorder.stopped
    assert recorder.failures == {"session": "OSError: no such thing"}


class Pausing(Recorder):
    """Runs something of another thread in the middle of each change of the scope."""

    def __init__(self) -> None:
        super().__init__(lambda: True)
        assert self.arm()
        self.meanwhile = nothing

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
    return [record.step for record in recorder.buffer if isinstance(record, Step)]


@pytest.mark.parametrize("where", [in_another_thread, lambda handler: handler])
@pytest.mark.parametrize("change", ["enter", "leave", "end_micro_step", "end_step"])
@pytest.mark.parametrize("other", ["phase", "micro-step", "step"])
def test_no_change_is_lost_to_another_thread_or_a_signal_handler(
    where: Callable[[Callable[[], object]], Callable[[], None]], change: str, other: str
) -> None:
    recorder = Pausing()
    outer = recorder.enter("forward")
    changes: dict[str, Callable[[], object]] = {
        "enter": lambda: recorder.enter("mine"),
        "leave": lambda: recorder.leave(outer),
        "end_micro_step": recorder.end_micro_step,
        "end_step": lambda: recorder.end_step("user"),
    }
    others: dict[str, Callable[[], object]] = {
        "phase": lambda: recorder.leave(recorder.enter("other")),
        "micro-step": recorder.end_micro_step,
        "step": lambda: recorder.end_step("user"),
    }
    done = threading.Event()
    recorder.meanwhile = where(lambda: (others[other](), done.set()))
    mine = changes[change]()
    assert done.wait(10)
    phase = {"enter": "mine", "leave": ""}.get(change, "forward")
    assert recorder.scope.phase == phase
    ended = [change, other].count("end_step") + [change, other].count("step")
    assert (recorder.scope.step, steps_of(recorder)) == (ended, list(range(ended)))
    micro_steps = [change, other].count("end_micro_step") + [change, other].count("micro-step")
    assert ended or recorder.scope.micro_step == micro_steps
    if change == "enter":
        recorder.leave(mine)
    if change != "leave":
        recorder.leave(outer)
    assert (recorder.scope.phase, recorder.phases) == ("", [])


@pytest.fixture
def eager_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switches")
def test_phases_and_steps_of_many_threads_are_all_counted(recorder: Recorder) -> None:
    threads, rounds = 8, 500

    def train() -> None:
        for _ in range(rounds):
            recorder.leave(recorder.enter("forward"))
            recorder.end_step("user")

    crowd = [threading.Thread(target=train) for _ in range(threads)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    assert sum(isinstance(record, Phase) for record in recorder.buffer) == threads * rounds
    assert steps_of(recorder) == list(range(threads * rounds))
    assert (recorder.scope.phase, recorder.phases) == ("", [])


def test_a_phase_that_is_open_in_a_forked_child_ends_without_the_lock(recorder: Recorder) -> None:
    entered = recorder.enter("forward")
    held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with recorder._progress:
            held.set()
            may_end.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if not child:
        signal.alarm(10)  # rather than waiting for good
        recorder.abandon()
        recorder.leave(entered)
        recorder.end_micro_step()
        recorder.end_step("user")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    may_end.set()
    holder.join()
    assert status == 0


def test_what_ends_after_a_recording_leaves_nothing_behind(recorder: Recorder) -> None:
    entered = recorder.enter("forward")
    recorder.stop()
    before = recorder.scope
    recorder.leave(entered)
    recorder.end_micro_step()
    recorder.end_step("user")
    assert (list(recorder.buffer), recorder.scope, recorder.steps) == ([], before, 0)


class Interrupts:
    """Raises in the middle of whatever runs, as a handler of the user may."""

    def __init__(self) -> None:
        signal.signal(signal.SIGUSR1, self.handler)

    def handler(self, number: int, frame: FrameType | None) -> None:
        raise TimeoutError("of the user")

    def __call__(self, *_: object) -> bool:
        signal.raise_signal(signal.SIGUSR1)
        return True


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    before = signal.getsignal(signal.SIGUSR1)
    yield Interrupts()
    signal.signal(signal.SIGUSR1, before)


def test_what_a_signal_handler_raises_is_the_users(interrupts: Interrupts) -> None:
    recorder = Recorder(interrupts)
    with pytest.raises(TimeoutError, match="of the user"):
        recorder.arm()
    assert (recorder.failures, recorder.stopped) == ({}, False)


def test_a_signal_handler_need_not_name_what_it_gets(interrupts: Interrupts) -> None:
    def handler(*_: object) -> None:
        raise TimeoutError("of the user")

    signal.signal(signal.SIGUSR1, handler)
    recorder = Recorder(interrupts)
    with pytest.raises(TimeoutError, match="of the user"):
        recorder.arm()
    assert recorder.failures == {}


@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_a_signal_handler_raises_in_a_hook_is_no_failure_of_it(
    recorder: Recorder, interrupts: Interrupts, moment: str
) -> None:
    hook, guards = Hook(recorder), {"before": nothing, "after": nothing, moment: interrupts}
    hook.name = "mine"
    method = hook.around(
        lambda: None, **{name: lambda *a, g=g: g(*a) for name, g in guards.items()}
    )
    with pytest.raises(TimeoutError, match="of the user"):
        method()
    assert (recorder.failures, hook.failures) == ({}, 0)


def test_what_a_signal_handler_raises_in_a_look_at_a_work_is_no_answer_of_it(
    recorder: Recorder, interrupts: Interrupts
) -> None:
    class Work:
        is_completed = interrupts

    work = Work()
    record = Collective(
        1, 1, 1, 8, 2, 100, "all_reduce", is_async=True, step=0, thread=1, return_ns=110
    )
    recorder.in_flight.works[id(work)] = (work, record)
    with pytest.raises(TimeoutError, match="of the user"):
        recorder.end_step("user")
    assert list(recorder.in_flight.works) == [id(work)]
    assert recorder.failures == {}


def test_a_stopped_recorder_does_not_arm_again(recorder: Recorder) -> None:
    recorder.stop()
    assert not recorder.arm()


def test_a_recording_that_begins_as_it_is_stopped_has_begun_before() -> None:
    """Else whoever stopped it would not know of the trace that has to be ended."""
    beginning, may_begin, order = threading.Event(), threading.Event(), []

    def begin() -> bool:
        beginning.set()
        may_begin.wait()
        order.append("begun")
        return True

    def stop() -> None:
        recorder.stop()
        order.append("stopped")

    recorder = Recorder(begin)
    threads = [threading.Thread(target=call, daemon=True) for call in (recorder.arm, stop)]
    threads[0].start()
    beginning.wait()
    threads[1].start()
    threads[1].join(0.1)  # so that it would be over if it did not wait
    may_begin.set()
    for thread in threads:
        thread.join()
    assert order == ["begun", "stopped"]
    assert not recorder.recording


def test_a_signal_handler_may_stop_a_recording_as_it_begins() -> None:
    def begin() -> bool:
        recorder.stop()
        return True

    recorder = Recorder(begin)
    assert not recorder.arm()


def test_a_forked_child_gives_up_without_the_lock_of_another_thread() -> None:
    beginning, may_end = threading.Event(), threading.Event()

    def begin() -> bool:
        beginning.set()
        return may_end.wait()

    recorder = Recorder(begin)
    thread = threading.Thread(target=recorder.arm, daemon=True)
    thread.start()
    beginning.wait()
    recorder.abandon()
    assert not recorder.arm()
    may_end.set()
    thread.join()
    assert not recorder.recording


def test_what_began_in_the_trace_before_is_not_of_this_one(recorder: Recorder) -> None:
    """Its calling sites have other numbers now, or none."""
    outer, inner = recorder.enter("backward", site=7), recorder.enter("forward")
    assert recorder.scope.site == 0
    recorder.leave(inner)
    assert recorder.scope.site == 7
    recorder.begin_again()
    assert recorder.scope.site == 0
    entered = recorder.enter("backward", site=8)
    recorder.leave(outer)
    assert recorder.scope.site == 8
    recorder.leave(entered)
    assert recorder.scope == Scope(0, 0, "")
    assert [one.scope.site for one in recorder.buffer if isinstance(one, Phase)] == [8]
