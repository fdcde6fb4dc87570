"""A recording begins once and ends for good, and what breaks is named."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from dsprof.hooks.base import Hook, nothing
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Collective


def test_arming_fails_for_good_when_the_session_does() -> None:
    def broken() -> bool:
        raise OSError("no such thing")

    recorder = Recorder(broken)
    assert not recorder.arm()
    assert recorder.stopped
    assert recorder.failures == {"session": "OSError: no such thing"}


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


class Panic(BaseException):
    """As code in Rust raises."""


def failing(recorder: Recorder, moment: str, error: BaseException | type[BaseException]) -> Hook:
    """Call a method around which something raises; return the hook."""

    def fails(*_: object) -> None:
        raise error

    hook = Hook(recorder)
    hook.name = "mine"
    guards = {"before": nothing, "after": nothing, moment: fails}
    assert hook.around(lambda: "result", **guards)() == "result"
    return hook


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_panic_in_a_hook_leaves_the_call_as_it_was(recorder: Recorder, moment: str) -> None:
    assert failing(recorder, moment, Panic("unwrap on None")).failures == 1
    assert recorder.failures == {"mine": "Panic: unwrap on None"}


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("error", [KeyboardInterrupt("Ctrl-C"), Panic])
def test_what_comes_from_outside_is_no_failure_of_a_hook(
    recorder: Recorder, moment: str, error: BaseException | type[BaseException]
) -> None:
    """A thread that raises in another one gives a class, so the exception has no arguments."""
    with pytest.raises((KeyboardInterrupt, Panic)):
        failing(recorder, moment, error)
    assert recorder.failures == {}


def test_an_error_that_cannot_be_shown_is_noted_all_the_same(recorder: Recorder) -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise ValueError("of no use")

    assert failing(recorder, "before", MuteError()).failures == 1
    assert recorder.failures == {"mine": "MuteError: it has no message"}


def test_a_hook_may_use_functions_in_c(recorder: Recorder) -> None:
    import torch._dynamo.eval_frame  # noqa: F401 - so that they are hidden from it at once

    calls: list[object] = []
    method = Hook(recorder).around(lambda thing: thing, calls.append, calls.append)
    assert method(1) == 1
    assert calls == [1, None]


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
        recorder.progress.end_step("user")
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


def test_hooks_share_one_of_a_kind(recorder: Recorder) -> None:
    class Kind:
        def __init__(self, recorder: Recorder) -> None:
            self.recorder = recorder

    assert recorder.shared(Kind) is recorder.shared(Kind)
    assert recorder.shared(Kind).recorder is recorder


def test_a_new_trace_counts_nothing_of_the_old_one(recorder: Recorder) -> None:
    old = recorder.outbox.records
    recorder.progress.end_step("user")
    recorder.outbox.dropped = recorder.in_flight.lost_stalls = 1
    recorder.hot.samples = recorder.hot.sampled_ns = recorder.hot.longest_ns = 100
    recorder.begin_again()
    assert (len(old), list(recorder.outbox.records)) == (1, [])
    counts = (recorder.outbox.dropped, recorder.in_flight.lost_stalls, recorder.progress.steps)
    assert (*counts, recorder.cost.total_ns()) == (0, 0, 0, 0)
    assert recorder.hot.longest_ns == 0


def test_the_longest_of_several_samples_is_left_out(recorder: Recorder) -> None:
    hot = recorder.hot
    hot.samples, hot.sampled_ns, hot.longest_ns = 4, 200_030, 200_000  # a garbage collection
    for _ in range(100):
        next(recorder.ids)
    assert recorder.cost.total_ns() == 100 * 10
