"""A signal that asks for details is shared with whoever handles it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from dsprof.recording.capture_signal import CaptureSignal


@pytest.fixture(autouse=True)
def unhandled() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGUSR2, before)


def test_it_is_noticed_once() -> None:
    flag = CaptureSignal("SIGUSR2")
    assert not flag.take()
    os.kill(os.getpid(), signal.SIGUSR2)
    assert [flag.take(), flag.take()] == [True, False]
    flag.close()
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL


def test_the_handler_of_the_user_is_called_and_put_back() -> None:
    seen: list[int] = []

    def own(number: int, frame: object) -> None:
        seen.append(number)

    signal.signal(signal.SIGUSR2, own)
    flag = CaptureSignal("SIGUSR2")
    os.kill(os.getpid(), signal.SIGUSR2)
    assert (flag.take(), seen) == (True, [signal.SIGUSR2])
    flag.close()
    assert signal.getsignal(signal.SIGUSR2) is own


def test_a_later_handler_of_the_user_stays() -> None:
    flag = CaptureSignal("SIGUSR2")
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    flag.close()
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN


def test_only_the_main_thread_can_look_for_it() -> None:
    errors: list[Exception] = []

    def look() -> None:
        try:
            CaptureSignal("SIGUSR2")
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert errors
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
