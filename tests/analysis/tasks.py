"""Tasks for engines: each process that starts for one imports this module, so it imports little."""

from __future__ import annotations

import os
import signal
import socket
from operator import add
from pathlib import Path
from threading import Event

from dsprof.analysis.engine import Engine, Job


def survivors(task: tuple[int, Path | None]) -> list[int]:
    """Return the number of a task; one with a file dies as long as the file is there."""
    number, mark = task
    if mark is not None and mark.exists():
        if mark.suffix == ".once":
            mark.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return [number]


def lost(task: tuple[int, Path | None]) -> list[int]:
    return [-task[0]]


JOB = Job(survivors, add, lost)


def deadly(engine: Engine, mark: Path) -> list[int]:
    """Return what comes of ten tasks of which the eighth kills its process."""
    mark.touch()
    tasks = [(number, mark if number == 8 else None) for number in range(1, 11)]
    told: list[tuple[int, int]] = []
    found = engine.merged(JOB, tasks, lambda *now: told.append(now))
    assert told[-1] == (10, 10)
    return sorted(found, key=abs)


def endless(port: int) -> list[int]:
    """Tell the test that the task has begun, and never end."""
    with socket.create_connection(("127.0.0.1", port)):
        Event().wait()
    return []


HONEST, KILLER = b"honest", b"killer"


def beside(task: tuple[bytes, int]) -> list[bytes]:
    """Tell the test that a task has begun; kill the process or go on, as the test then says."""
    name, port = task
    with socket.create_connection(("127.0.0.1", port)) as begun:
        begun.sendall(name)
        if begun.recv(1):
            os.kill(os.getpid(), signal.SIGKILL)
    return [name]


def lost_beside(task: tuple[bytes, int]) -> list[bytes]:
    return [b"lost " + task[0]]


def bottomless(task: int) -> list[int]:
    """Call itself without end."""
    return bottomless(task)


def greedy(*_: object) -> list[int]:
    raise MemoryError


def unsurvived(one: list[int], other: list[int]) -> list[int]:
    """Kill the process, as the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    return one + other


def waiting(port: int) -> list[int]:
    """Tell the test that the task has begun, and go on when the connection ends."""
    with socket.create_connection(("127.0.0.1", port)) as begun:
        return [len(begun.recv(1))]


WAIT = Job(waiting, add, waiting)


def waiting_first(port: int) -> list[int]:
    return waiting(port) if port else [0]
