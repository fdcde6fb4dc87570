"""Where ranks announce the steps that all keep: in the memory of their node, and to all nodes.

One rank of each node leads. It announces to the node, and asks the store of the default group or,
without one, the folder. The others hand over to it what they propose. A place holds the last few
announcements, because whoever looks may be later than the next one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dsprof.files import notes
from dsprof.files.decoding import UNDECODABLE
from dsprof.recording.group_store import Fail, Questions, connect, default_store
from dsprof.trace.dumps.state_file import memory_folders, run_prefix
from dsprof.trace.rolling.capture import LARGEST_BYTES, Captured, announce, announced, decoded

T = TypeVar("T")

HELD = 8
"""Announcements that a place holds. More are not made within the time between two looks."""

LOOK_TICKS = 5
"""A leader looks this often, in ticks, for what other nodes announced."""

_RAREST_LOOK_TICKS = 64 * LOOK_TICKS
"""It looks ever more rarely at a store that does not answer: torch complains of each attempt."""


def kind_of(proposal: Captured) -> str:
    """Return the kind of an alarm, `signal`, or what names a request."""
    return proposal.id.partition("-")[0]


class NodeMemory:
    """The memory of a node, by which its ranks hear each other within two seconds."""

    def __init__(self, run: str, folder: Path) -> None:
        memory = next(memory_folders(), None)
        self.is_there = memory is not None
        name = run_prefix(f"{run} {os.path.realpath(folder)}")
        self._announced = (memory or Path()) / f"{name}-capture.state"
        self._proposed = (memory or Path()) / f"{name}-proposal.state"

    def announce(self, found: Iterable[Captured]) -> bool:
        """Tell the ranks of this node, in place of what was announced before; false if it fails."""
        with suppress(OSError):  # the memory is full
            return not self.is_there or notes.put(self._announced, msgspec.json.encode([*found]))
        return False

    def renew(self) -> bool:
        """Keep the announcement from being removed as stale; false if it has been removed."""
        with suppress(OSError):
            if self.is_there:
                os.utime(self._announced)
            return True
        return False

    def announced(self) -> list[Captured] | None:
        """Return what the leader announced; None if there is no leader."""
        data = notes.read(self._announced, LARGEST_BYTES) if self.is_there else b""
        return _all_of(data) if data else None

    def renewed_ns(self) -> int:
        """Return when a leader was there last: a killed one leaves its announcement."""
        with suppress(OSError):
            return self._announced.stat().st_mtime_ns
        return 0

    def propose(self, proposal: Captured) -> bool:
        """Hand a proposal over to the leader; false while it has not taken another."""
        with suppress(OSError):
            data = msgspec.json.encode(proposal)
            return self.is_there and notes.put(self._proposed, data, is_first=True)
        return False

    def take(self) -> Captured | None:
        """Return what a rank of this node proposed since the last call."""
        data = notes.read(self._proposed, LARGEST_BYTES) if self.is_there else b""
        if data:
            _remove(self._proposed)
        return decoded(data)

    def close(self, *, leads: bool) -> None:
        """Remove what is of no use to a later run."""
        if self.is_there:
            _remove(self._proposed)
            if leads:
                _remove(self._announced)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


class AllNodes:
    """The store of the default group or, without one, the folder: for leaders."""

    def __init__(self, run: str, folder: Path, fail: Fail) -> None:
        self._folder, self._run = folder, run
        self._key = f"dsprof/capture/{run}"
        self._questions = Questions(fail)
        self._connection: Any = None
        self._pause_ticks = LOOK_TICKS
        self._ticks_left = 0

    def is_due(self) -> bool:
        """Say in each tick whether to look in this one."""
        self._ticks_left -= 1
        return self._ticks_left <= 0

    def announced(self) -> list[Captured] | None:
        """Return what leaders announced; None if there is no answer."""
        found = self._ask(self._read)
        self._ticks_left = self._pause_ticks
        return found

    def agree(self, proposal: Captured, known: Container[str]) -> list[Captured]:
        """Announce a proposal unless a leader was first; return what is not known, and counts."""
        return self._ask(lambda: self._agreed(proposal, known)) or [proposal]

    def _ask(self, question: Callable[[], T]) -> T | None:
        answer = self._questions.within(question)
        if answer is None:
            self._connection = None
            self._pause_ticks = min(2 * self._pause_ticks, _RAREST_LOOK_TICKS)
        else:
            self._pause_ticks = LOOK_TICKS
        return answer

    # -- in a thread that may not answer ----------------------------------------------------------

    def _store(self) -> Any:
        """Return a connection of our own to the store; None where there is none."""
        if self._connection is None and (store := default_store()) is not None:
            self._connection = connect(store)
        return self._connection

    def _read(self) -> list[Captured]:
        if (store := self._store()) is not None:
            return _all_of(bytes(store.get(self._key))) if store.check([self._key]) else []
        return _all_of(announced(self._folder, self._run))

    def _agreed(self, proposal: Captured, known: Container[str]) -> list[Captured]:
        store = self._store()
        before = announced(self._folder, self._run) if store is None else b""
        while True:
            held = _all_of(before)
            news = [one for one in held if one.id not in known]
            if kind_of(proposal) in map(kind_of, news):
                return news
            after = msgspec.json.encode([*held, proposal][-HELD:])
            if store is None:
                announce(self._folder, self._run, after)
                return [*news, proposal]
            found = bytes(store.compare_set(self._key, before.decode(), after.decode()))
            if found in (before, after):  # the store of a server that began anew has no `before`
                return [*news, proposal]
            before = found


def _all_of(data: bytes) -> list[Captured]:
    with suppress(*UNDECODABLE):
        return msgspec.json.decode(data, type=list[Captured])
    return []
