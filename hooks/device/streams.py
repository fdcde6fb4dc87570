"""Which collective each stream was given last, and which stream has already waited for it.

A stream does one thing after the other. Whoever waits for a stream, or for an event recorded on
it, therefore waits for the collectives that it was given before, and for none given later.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, NamedTuple

from dsprof.hooks.device.device import StreamKey

_EVENTS = 1024
"""Events that are remembered before those that are gone are looked for."""


class Tail(NamedTuple):
    """The newest collective that a stream has to come through."""

    key: StreamKey
    number: int  # grows with each collective that any stream is given
    collective: int
    origin: StreamKey  # of the stream that came through it first


class Streams:
    """Work that streams have to finish."""

    def __init__(self) -> None:
        self._tails: dict[StreamKey, Tail] = {}
        # By ids: a WeakKeyDictionary calls Python three times for each event that is recorded.
        self._events: dict[int, tuple[weakref.ref[Any], Tail, int]] = {}
        self._room = _EVENTS
        self._waited: dict[tuple[StreamKey, StreamKey], int] = {}
        self._numbers = itertools.count(1)

    def give(self, key: StreamKey, collective: int, origin: StreamKey | None = None) -> None:
        """A stream has to come through a collective from now on: runs it, or waits for it.

        `origin` is the stream that ran it, if that is another one.
        """
        self._tails[key] = Tail(key, next(self._numbers), collective, origin or key)

    def record(self, event: Any, key: StreamKey, now: int) -> None:
        """A user's event was recorded on a stream."""
        tail = self._tails.get(key)
        if tail is None:
            self._events.pop(id(event), None)
            return
        self._events[id(event)] = weakref.ref(event), tail, now
        if len(self._events) > self._room:
            alive = {number: one for number, one in list(self._events.items()) if one[0]()}
            self._events, self._room = alive, max(_EVENTS, 2 * len(alive))

    def before(self, event: Any) -> tuple[Tail, int] | None:
        """Return what must be over when `event` is passed, and when that was recorded."""
        found = self._events.get(id(event))
        return found[1:] if found is not None and found[0]() is event else None

    def tail(self, key: StreamKey) -> Tail | None:
        """Return what a stream has to come through."""
        return self._tails.get(key)

    def newest_but(self, key: StreamKey) -> Tail | None:
        """Return the newest collective on any stream of the same device, `key` left aside."""
        tails = list(self._tails.values())  # other threads may add some meanwhile
        others = (t for t in tails if t.key != key and t.key[0] == key[0])
        return max(others, key=lambda tail: tail.number, default=None)

    def wait(self, waiting: StreamKey, tail: Tail) -> bool:
        """A stream waits for what another was given; tell whether that is new to it.

        What it ran itself comes back to it in each bucket of overlap_comm, and is none.
        """
        pair = waiting, tail.key
        if waiting in (tail.key, tail.origin) or self._waited.get(pair, 0) >= tail.number:
            return False
        self._waited[pair] = tail.number
        return True
