"""Asks a store for the next objects while one is read: far away, each answer takes long.

Threads are daemons, so that an interrupt waits for none of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import TypeVar

from dsprof.files import remote
from dsprof.files.remote import MOST_AT_ONCE, Answer, RemotePath

T = TypeVar("T")
R = TypeVar("R")


def read_ahead(items: Sequence[T], files_of: Callable[[T], Sequence[Path]]) -> Iterator[T]:
    """Pass items on, while a store is asked for the objects of the next ones.

    What it told of the objects of an item is believed until the next item is taken.
    """
    told = answers(_look, (path for item in items for path in files_of(item)))
    for item in items:
        paths = files_of(item)
        found = zip(paths, islice(told, len(paths)), strict=True)
        with remote.known({path: answer for path, answer in found if answer is not None}):
            yield item


def answers(ask: Callable[[Path], R], paths: Iterable[Path]) -> Iterator[R]:
    """Yield what `ask` returns for each path, in order; stores are asked ahead."""
    asked: deque[Future[R]] = deque()
    for path in paths:
        asked.append(_asked(ask, path))
        if len(asked) == MOST_AT_ONCE:
            yield asked.popleft().result()
    while asked:
        yield asked.popleft().result()


def _asked(ask: Callable[[Path], R], path: Path) -> Future[R]:
    answer: Future[R] = Future()

    def run() -> None:
        try:
            answer.set_result(ask(path))
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is taken
            answer.set_exception(error)

    if isinstance(path, RemotePath) and remote.takes_many(path):
        Thread(target=run, daemon=True).start()
    else:
        run()
    return answer


def _look(path: Path) -> Answer | None:
    return remote.look(path) if isinstance(path, RemotePath) else None
