"""A signal that asks for details is shared with whoever handles it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsprof.recording.capture.on_signal import CaptureSignal


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


def test_it_is_ignored_after_the_end() -> None:
    flag = CaptureSignal("SIGUSR2")
    flag.close(is_exit=False)
    os.kill(os.getpid(), signal.SIGUSR2)
    assert not flag.take()
    with subprocess.Popen(["sleep", "60"]) as program:
        program.send_signal(signal.SIGUSR2)
    assert program.returncode == -signal.SIGUSR2


TRAINING = """
import atexit, os, signal, sys

def send(when):
    os.kill(os.getpid(), signal.SIGUSR2)
    print(when, flush=True)

atexit.register(lambda: send("after the end"))
import dsprof
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
dsprof.enable(mode="always", capture_signal="SIGUSR2", out=sys.argv[1])
import torch, torch.distributed as dist

send("before the first collective")
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(3))
send("recording")
if sys.argv[2] == "disable":
    dsprof.disable()
"""


@pytest.mark.parametrize("end", ["disable", "exit"])
def test_it_kills_no_training(tmp_path: Path, end: str) -> None:
    command = [sys.executable, "-c", TRAINING, str(tmp_path), end]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    said = ["before the first collective", "recording", "after the end"]
    assert done.stdout.splitlines() == said


def test_it_is_ignored_while_python_ends() -> None:
    flag = CaptureSignal("SIGUSR2")
    flag.close(is_exit=True)
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN  # Python puts SIG_DFL for others


def test_a_handler_of_the_user_that_replaced_it_is_shared_again() -> None:
    """As when torch was imported, then the program set its handler, then training began."""
    before = CaptureSignal("SIGUSR2")
    seen: list[int] = []
    signal.signal(signal.SIGUSR2, lambda number, _: seen.append(number))
    assert not before.is_handled
    flag = CaptureSignal("SIGUSR2")
    os.kill(os.getpid(), signal.SIGUSR2)
    assert (flag.is_handled, flag.take(), seen) == (True, True, [signal.SIGUSR2])


def test_the_handler_of_the_user_is_called_and_put_back() -> None:
    seen: list[int] = []

    def own(number: int, frame: object) -> None:
        seen.append(number)

    signal.signal(signal.SIGUSR2, own)
    flag = CaptureSignal("SIGUSR2")
    os.kill(os.getpid(), signal.SIGUSR2)
    assert (flag.take(), seen) == (True, [signal.SIGUSR2])
    flag.close(is_exit=False)
    assert signal.getsignal(signal.SIGUSR2) is own


def test_a_later_handler_of_the_user_stays() -> None:
    flag = CaptureSignal("SIGUSR2")
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    flag.close(is_exit=False)
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
