"""Recorder: where hooks leave what they saw. It never raises, and holds nothing of the user's.

The one exception are the Works that `in_flight` keeps.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

from dsprof.errors import message_of
from dsprof.recording.recorder.contexts import Contexts
from dsprof.recording.recorder.hot_state import HotState
from dsprof.recording.recorder.in_flight import InFlight
from dsprof.recording.recorder.interrupts import (
    raise_if_of_other_thread,
    raise_if_of_signal_handler,
)
from dsprof.recording.recorder.listeners import Listeners
from dsprof.recording.recorder.outbox import Outbox
from dsprof.recording.recorder.progress import Progress
from dsprof.trace.schema import Collective, Phase
from dsprof.trace.scope import Scope, clock
from dsprof.trace.writing.encode import READ_OF_NAME

SAMPLE = 31
"""Every so many collectives the hook times itself. A prime: else often the same one of a step."""

FIRST_SAMPLE = 7
"""The collective that is timed first: those before it find all of the hook cold."""


class Cost:
    """Says which collectives are timed, and adds up what they took.

    Any thread that communicates adds to it without a lock: a sample that is lost to another thread
    changes an estimate by little. The session reads it when a trace ends.
    """

    def __init__(self, hot: HotState) -> None:
        # Of each collective that Python records, whether its hook times itself; C counts its own.
        self.are_timed = itertools.cycle([n == FIRST_SAMPLE for n in range(1, SAMPLE + 1)])
        self._hot, self._ids = hot, hot.ids
        self._first_id = 1  # of this trace

    def begin_again(self) -> None:
        """Count anew, for a new trace."""
        self._hot.samples = self._hot.sampled_ns = self._hot.longest_ns = 0
        self._first_id = next(self._ids)

    def total_ns(self) -> int:
        """Estimate what hooks have taken in this trace.

        A collective's record is timed occasionally; whatever else hooks number costs about as
        much. Phases and waits are left out: in `benchmarks/overhead_hooks.py` it is 50 to 90 % of
        what all hooks take. Of several samples the longest is left out: it may hold a collection of
        Python's garbage, which would have run elsewhere.
        """
        numbered = next(self._ids) - self._first_id
        hot = self._hot
        if hot.samples < 2:
            return hot.sampled_ns * numbered
        return (hot.sampled_ns - hot.longest_ns) * numbered // (hot.samples - 1)


T = TypeVar("T")


def _nothing(*args: Any) -> None:
    """Ignore it: there is no listener."""


class Recorder:
    """Whether anything is recorded, and the parts that hooks use for it.

    `recording` and `stopped` are read in every thread without a lock, and changed with `_arming`
    held, in a forked child without. Each part says which threads touch it.
    """

    def __init__(
        self,
        on_first_collective: Callable[[], bool],
        on_world: Callable[[bool], None] = _nothing,
        on_failure: Callable[[str], None] = _nothing,
    ) -> None:
        """The session learns of each change of the default group, and once of a hook that breaks.

        `on_world` gets whether the program has left the group in good order.
        """
        self.hot = HotState()
        self.stopped = False
        self.has_missed = False  # a collective was called without a default process group
        self.failures: dict[str, str] = {}
        self.ids = self.hot.ids = itertools.count(1)  # of collectives, requests, flushes, fetches
        self.on_world = on_world
        self.trace_listeners: Listeners[[]] = Listeners(self.fail)  # told of each new trace
        self.outbox = Outbox(self.hot)
        self.in_flight = InFlight(self.hot, self.outbox.add, self.fail)
        self.outbox.told = self.in_flight.state.define
        self.progress = Progress(self.outbox, self.in_flight, self.fail)
        self.contexts = Contexts(self.hot)
        self.cost = Cost(self.hot)
        self._shared: dict[Callable[[Recorder], object], object] = {}
        self._on_first_collective = on_first_collective
        self._on_failure = on_failure
        self._arming = threading.RLock()

    @property
    def recording(self) -> bool:
        """Whether hooks record; those that run often read it where it is kept, in `hot`."""
        return self.hot.recording

    @recording.setter
    def recording(self, on: bool) -> None:
        self.hot.recording = on

    def shared(self, kind: Callable[[Recorder], T]) -> T:
        """Return the one of this kind that all hooks share.

        It is made when a hook first asks, as hooks do while they are made, in the thread that makes
        them.
        """
        if kind not in self._shared:
            self._shared[kind] = kind(self)
        return cast(T, self._shared[kind])

    def arm(self, *, at_collective: bool = True) -> bool:
        """Start recording if a process group is up; called at each collective until it is."""
        if self.stopped:
            return False
        with self._arming:
            try:
                if not (self.recording or self.stopped) and self._on_first_collective():
                    self.hot.step_start_ns = clock()
                    self.recording = not self.stopped  # by a signal handler, meanwhile
                elif at_collective:
                    self.has_missed = True
            except Exception as error:
                self.fail("session", error)
                self.stopped = True
        return self.recording

    def annotate(self, name: str, scope: Scope, start_ns: int) -> None:
        """Record a span that ends now, and began in `scope`."""
        span = Phase(start_ns, clock(), scope.step, scope.micro_step, scope.engine)
        span.name, span.thread = name[:READ_OF_NAME], threading.get_ident()
        span.is_annotation = True
        self.outbox.add(span)

    def stop(self) -> None:
        """Record no more; hooks that stay in someone's chain only pass calls through.

        A thread that begins to record just now has begun before this returns: else there would be
        a trace that is never ended.
        """
        with self._arming:
            self.recording = False
            self.stopped = True

    def abandon(self) -> None:
        """Record no more, in a forked child: the locks may be of threads that are not there."""
        self.recording = False
        self.stopped = True
        self.in_flight.state.forget()

    def begin_again(self) -> list[Collective]:
        """Begin anew for a new trace: nothing of the old one is counted in it.

        Returns:
            What was not handed over by now.
        """
        left = self.in_flight.begin_again()
        self.outbox.begin_again()
        self.cost.begin_again()
        self.progress.begin_again()
        self.trace_listeners.tell()
        return left

    def fail(self, hook: str, error: BaseException) -> None:
        """Remember that a hook broke; the caller makes it inert.

        Raises:
            BaseException: `error`, where a signal handler of the user or another thread raised it
                while a hook ran.
        """
        raise_if_of_signal_handler(error)
        raise_if_of_other_thread(error)
        if hook not in self.failures:
            self.failures[hook] = f"{type(error).__name__}: {message_of(error)}"
            with suppress(Exception):  # a failure to report does no harm
                self._on_failure(hook)
