from __future__ import annotations

import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path
from threading import Barrier, Lock, get_ident

import pytest

from dsprof.files import remote
from dsprof.files.read_ahead import answers, read_ahead
from dsprof.files.remote import MOST_AT_ONCE, RemoteError, RemotePath, RemoteStatus, address

pytest.importorskip("aiohttp")

_PATIENCE_S = 60
"""Only a test that fails takes this long."""


def objects(count: int) -> list[RemotePath]:
    return [address(f"http://127.0.0.1:9/{number}") for number in range(count)]


def test_as_many_are_asked_at_once_as_may_be_and_answer_in_order() -> None:
    met, lock, now, most = Barrier(MOST_AT_ONCE), Lock(), 0, 0

    def ask(path: Path) -> str:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        met.wait(_PATIENCE_S)
        with lock:
            now -= 1
        return path.name

    paths = objects(3 * MOST_AT_ONCE)
    assert list(answers(ask, paths)) == [path.name for path in paths]
    assert most == MOST_AT_ONCE


def test_an_error_is_raised_where_its_answer_is_taken() -> None:
    def ask(path: Path) -> str:
        if path.name == "1":
            raise RemoteError("gone")
        return path.name

    found = answers(ask, objects(3))
    assert next(found) == "0"
    with pytest.raises(RemoteError, match="gone"):
        next(found)


def test_local_files_are_asked_in_this_thread() -> None:
    assert set(answers(lambda _: get_ident(), [Path("a"), Path("b")])) == {get_ident()}


def test_what_a_store_tells_is_believed_for_the_turn_of_an_object(monkeypatch) -> None:
    asked: list[RemotePath] = []

    def ask(path: RemotePath) -> RemoteStatus:
        asked.append(path)
        if path.name == "1":
            raise RemoteError("no such object")
        return RemoteStatus(False, 0, str(len(asked)))

    monkeypatch.setattr(remote, "_asked", ask)
    paths = objects(4)
    for path in read_ahead(paths, lambda path: [path]):
        if path.name == "1":
            with pytest.raises(RemoteError):
                remote.status_of(path)
        else:
            assert remote.status_of(path) == remote.status_of(path)
    assert sorted(asked) == paths
    remote.status_of(paths[0])
    assert asked[-1] == paths[0], "its turn is over, and the store is asked again"


def test_nothing_is_believed_when_a_reader_stops_early(monkeypatch) -> None:
    monkeypatch.setattr(remote, "_asked", lambda path: RemoteStatus(False, 0, path.name))
    for _ in islice(read_ahead(objects(9), lambda path: [path]), 2):
        pass
    assert remote._known == {}


_INTERRUPTED = """
import os, signal
from threading import Event
from dsprof.files.read_ahead import answers
from dsprof.files.remote import address

def ask(path):
    if path.name == "3":
        os.kill(os.getpid(), signal.SIGINT)
    Event().wait()

list(answers(ask, [address(f"http://127.0.0.1:9/{number}") for number in range(4)]))
"""


def test_an_interrupt_waits_for_no_answer() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED], timeout=_PATIENCE_S, stderr=subprocess.DEVNULL
    )
    assert ended.returncode == -signal.SIGINT
