"""Ranks are read in several processes, and one that dies of a rank is replaced."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from operator import add
from pathlib import Path
from threading import Thread

from dsprof.analysis.engine import Job, Processes, parted, unshown
from tests.analysis.tasks import HONEST, beside, deadly, lost_beside
from tests.beside import ROOT


def test_parts_hold_each_task_once_and_the_last_ones_are_small() -> None:
    tasks = list(range(1000))
    parts = parted(tasks, 2)
    assert [task for part in parts for task in part] == tasks
    sizes = [len(part) for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-2:]) == (64, [1, 1])
    assert parted(tasks[:1], 8) == [[0]]


def test_a_process_that_dies_is_replaced(tmp_path: Path) -> None:
    assert deadly(Processes(2), tmp_path / "8.once") == list(range(1, 11))


def test_only_the_task_that_kills_is_lost(tmp_path: Path) -> None:
    assert deadly(Processes(2), tmp_path / "8.always") == [*range(1, 8), -8, 9, 10]


_ENDLESS = """
import sys
from operator import add
from dsprof.analysis.engine import Job, Processes, unshown
from tests.analysis.tasks import endless
Processes(2).merged(Job(endless, add, endless), 8 * [int(sys.argv[1])], unshown)
"""


def ended_by(end: Callable[[int], None]) -> tuple[int, bytes]:
    """Return how a driver ended and what was written; fail if its two processes go on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        started = subprocess.Popen(
            [sys.executable, "-c", _ENDLESS, port],
            cwd=ROOT,
            start_new_session=True,
            stderr=subprocess.PIPE,
        )
        begun = [listener.accept()[0] for _ in range(2)]
        end(started.pid)
        try:
            told = started.communicate(timeout=60)[1]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
        assert [one.recv(1) for one in begun] == [b"", b""]
        for one in begun:
            one.close()
    return started.returncode, told


def test_an_interrupt_ends_all_processes_at_once() -> None:
    code, told = ended_by(lambda pid: os.killpg(pid, signal.SIGINT))
    assert code == -signal.SIGINT
    assert told.count(b"Traceback") == 1, "the processes say nothing"


def test_processes_end_with_a_driver_that_is_killed() -> None:
    assert ended_by(lambda pid: os.kill(pid, signal.SIGKILL))[0] == -signal.SIGKILL


def test_after_a_death_several_processes_go_on() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(60)
    port = listener.getsockname()[1]

    def begun(count: int) -> list[socket.socket]:
        return [listener.accept()[0] for _ in range(count)]

    def direct() -> None:
        with listener:
            together = begun(4)
            together[0].sendall(b"!")
            for one in together:
                while one.recv(16):
                    pass
            for count in (2, 2, 1):
                for one in begun(count):
                    one.recv(16)
                    one.close()

    directing = Thread(target=direct)
    directing.start()
    job = Job(beside, add, lost_beside)
    # More tasks than processes: Python's pool may not watch the last process that it starts until
    # the next task comes, or a result.
    assert Processes(4).merged(job, 5 * [(HONEST, port)], unshown) == 5 * [HONEST]
    directing.join()
