"""Where the ranks of a run are read: in this process, in several, or wherever an `Engine` says.

An engine works on tasks and merges what they give in the order in which it comes: merges commute.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from signal import SIG_IGN, SIGINT, signal
from threading import Thread
from typing import Generic, Protocol, TypeVar

from dsprof.analysis.freed_memory import keep_freed_memory
from dsprof.files.read_ahead import read_ahead
from dsprof.trace.run import RankFiles, objects_of

T = TypeVar("T")
R = TypeVar("R")

Progress = Callable[[int, int], None]
"""Told how many ranks are read, and of how many."""

_PARTS_A_PROCESS = 3  # of what is left
_LARGEST_PART = 64
"""Large parts save memory: each holds once what is equal on many of its ranks."""


@dataclass(frozen=True, slots=True)
class Job(Generic[T, R]):
    """Work done for each task: functions of modules, so that other processes find them."""

    work: Callable[[T], R]
    merge: Callable[[R, R], R]
    lost: Callable[[T], R]  # instead of a task that no process survived
    files_of: Callable[[T], RankFiles] | None = None  # that it reads, if it does

    def of_each(self, tasks: Sequence[T]) -> Iterator[R]:
        """Work on some tasks, one after the other; stores are asked for the files of the next."""
        files_of = self.files_of
        if files_of is None:
            return map(self.work, tasks)
        return map(self.work, read_ahead(tasks, lambda task: objects_of(files_of(task))))

    def of_part(self, tasks: Sequence[T]) -> R:
        """Work on some tasks, and merge what they give."""
        return fold(self.of_each(tasks), self.merge)


class Engine(Protocol):
    """Whatever works on tasks."""

    def merged(self, job: Job[T, R], tasks: Sequence[T], progress: Progress) -> R:
        """Return what all tasks give, of which there is at least one, merged."""
        ...


@dataclass(frozen=True, slots=True)
class Processes:
    """Several processes of this machine, or this one.

    Each imports the program's main module, so more than one are for programs that guard it.
    """

    count: int = 1

    def merged(self, job: Job[T, R], tasks: Sequence[T], progress: Progress) -> R:
        """Return what all tasks give, merged."""
        count = min(self.count, len(tasks))
        here = ((1, result) for result in job.of_each(tasks))
        results = _in_processes(job, tasks, count) if count > 1 else here
        return fold(shown(results, len(tasks), progress), job.merge)


HERE = Processes()
"""This process."""


def unshown(done: int, total: int) -> None:
    """Show no progress."""


def fold(values: Iterable[R], merge: Callable[[R, R], R]) -> R:
    """Merge neighbours of as many values: merged in sequence, each would copy all before it."""
    held: list[tuple[int, R]] = []
    for value in values:
        count, whole = 1, value
        while held and held[-1][0] == count:
            before, earlier = held.pop()
            count, whole = before + count, merge(earlier, whole)
        held.append((count, whole))
    return reduce(lambda later, earlier: merge(earlier, later), [one for _, one in reversed(held)])


def parted(tasks: Sequence[T], processes: int) -> list[Sequence[T]]:
    """Split tasks into parts of which each gives one result: fewer to send, enough to share.

    The last parts are small, so that all processes end at about the same time.
    """
    parts: list[Sequence[T]] = []
    left = tasks
    while left:
        size = min(max(len(left) // (processes * _PARTS_A_PROCESS), 1), _LARGEST_PART)
        parts.append(left[:size])
        left = left[size:]
    return parts


def shown(results: Iterable[tuple[int, R]], total: int, progress: Progress) -> Iterator[R]:
    """Pass results on, and say of how many tasks they were."""
    done = 0
    for count, result in results:
        done += count
        progress(done, total)
        yield result


def _in_processes(job: Job[T, R], tasks: Sequence[T], count: int) -> Iterator[tuple[int, R]]:
    left = dict(enumerate(parted(tasks, count)))
    sharing = count
    while left:
        yield from _survived(job, left, sharing)
        # A process was killed, probably because memory ran out: fewer share it, task by task.
        left = dict(enumerate([task] for part in left.values() for task in part))
        if left and sharing == 1:
            yield 1, job.lost(left.pop(0)[0])
        # What dies without others dies of its task: the rest may share memory again.
        sharing = sharing // 2 or count


def _survived(job: Job[T, R], left: dict[int, Sequence[T]], count: int) -> Iterator[tuple[int, R]]:
    """Yield what parts gave until a process dies, and take them out of `left`."""
    from concurrent.futures.process import BrokenProcessPool

    with _processes(count) as pool:
        with _safe_path():
            futures = {pool.submit(job.of_part, part): place for place, part in left.items()}
        for future in as_completed(list(futures)):
            place = futures.pop(future)
            try:
                result = future.result()
            except BrokenProcessPool:
                continue
            yield len(left.pop(place)), result


@contextmanager
def _processes(count: int) -> Iterator[Executor]:
    """Start fresh processes: a fork would copy the threads' locks of whoever calls.

    On an interrupt or an error they end at once: their pool would wait until all is read.
    """
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import active_children, get_context

    others = active_children()
    with _safe_path():
        pool = ProcessPoolExecutor(count, get_context("spawn"), _begin_process)
    try:
        yield pool
    except BaseException:
        for process in active_children():
            if process not in others:
                process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_process() -> None:
    keep_freed_memory()
    # An interrupt from the keyboard goes to all processes: leave the ending to the parent.
    signal(SIGINT, SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End when a signal has ended the parent: its pool would be waited for forever."""
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _safe_path() -> Iterator[None]:
    """Have processes that start now import nothing from the current folder (from Python 3.11 on).

    They look there for `multiprocessing` itself, before they get the path of this process.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]
        if before is not None:
            os.environ["PYTHONSAFEPATH"] = before
