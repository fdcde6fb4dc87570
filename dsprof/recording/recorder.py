"""Recorder: where hooks leave what they saw. It never raises, and holds nothing of the user's.

The one exception are the Works that `in_flight` keeps.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from typing import Any

from dsprof.events import OUTSIDE, Context, Scope, clock
from dsprof.recording.in_flight import InFlight
from dsprof.recording.interrupts import raise_if_of_signal_handler
from dsprof.trace.schema import Collective, Phase, Record, Step

BUFFER_RECORDS = 200_000
"""Records that may wait for the writer; more are dropped and counted."""

COST_SAMPLE = 31
"""Every so many collectives the hook times itself. A prime: else often the same one of a step."""

FIRST_SAMPLE = 7
"""The collective that is timed first: those before it find all of the hook cold."""

_SOURCES = ("optimizer", "deepspeed", "user")  # of steps, the best one last


class Loop:
    """What hooks on a plain torch loop tell each other; a DeepSpeed engine marks its own phases."""

    __slots__ = ("after_backward", "forward", "has_engine")

    def __init__(self) -> None:
        self.has_engine = False
        self.forward: Phase | None = None  # the one that is open
        self.after_backward = False  # and neither a forward nor a step has begun since


NOBODY = Context()
"""The context of a thread that communicates for the user himself."""


class Recorder:
    """Takes records from hooks in any thread; a writer drains `buffer`."""

    def __init__(self, on_first_collective: Callable[[], bool]) -> None:
        self.on_new_world: Callable[[], None] = _nothing  # told of each new default group
        self.on_cpp: Callable[[], None] = _nothing  # told before C++ first communicates by itself
        self.on_failure: Callable[[str], None] = _nothing  # told of each hook that breaks, once
        self.world_listeners: list[Callable[[], None]] = []  # told of each new trace
        self.recording = False
        self.stopped = False
        self.scope = OUTSIDE
        self.contexts: dict[int, Context] = {}  # thread -> on whose behalf it communicates
        self.buffer: deque[Record] = deque()
        self.definitions: deque[Any] = deque()  # structs of dsprof.trace.schema, written first
        self.in_flight = InFlight(self.add, self.fail)
        self.announced: set[int] = set()  # threads in a method that records the collective itself
        self.noted_below: dict[int, int] = {}  # thread -> when a kernel last recorded for it
        self.on_device: Callable[[Collective, Any], None] = self._on_no_device
        self.lost_stalls = 0
        self.captured = 0  # collectives that went into graphs of a device
        self.ids = itertools.count(1)  # of collectives, requests, flushes and fetches
        # Of each collective, whether its hook times itself.
        self.are_timed = itertools.cycle([n == FIRST_SAMPLE for n in range(1, COST_SAMPLE + 1)])
        self.groups: Any = None  # the hooks' own, shared between them
        self.sites: Any = None  # likewise
        self.models: Any = None  # likewise
        self.group_ids = itertools.count(1)
        self.site_ids = itertools.count(1)
        self.dropped = 0
        self.samples = self.sampled_cost_ns = 0
        self.first_id = 1  # of this trace
        self.failures: dict[str, str] = {}
        self.phases: list[Phase] = []  # begun and not ended, in this order
        self.step_start_ns = 0
        self.steps = 0
        self.loop = Loop()
        self.step_source = ""
        self.step_listeners: list[Callable[[int], None]] = []
        self.engine_listeners: list[Callable[[Any, int], None]] = []  # DeepSpeed
        self.roles: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # of groups
        self.reduce_op_name: Callable[[Any], str] = str
        self._on_first_collective = on_first_collective
        self._arming = threading.RLock()
        # `scope`, `phases`, steps. Re-entrant: a signal handler of the user may train, too.
        self._progress = threading.RLock()

    # -- life ---------------------------------------------------------------------------------

    def arm(self) -> bool:
        """Start recording if a process group is up; called at each collective until it is."""
        if self.stopped:
            return False
        with self._arming:
            try:
                if not (self.recording or self.stopped) and self._on_first_collective():
                    self.step_start_ns = clock()
                    self.recording = not self.stopped  # by a signal handler, meanwhile
            except Exception as error:
                self.fail("session", error)
                self.stopped = True
        return self.recording

    def stop(self) -> None:
        """Record no more; hooks that stay in someone's chain only pass calls through.

        A thread that begins to record just now has begun before this returns: else there would be
        a trace that nobody ends.
        """
        with self._arming:
            self.recording = False
            self.stopped = True

    def abandon(self) -> None:
        """Record no more, in a forked child: the locks may be of threads that are not there."""
        self.recording = False
        self.stopped = True

    def begin_again(self) -> list[Collective]:
        """Begin anew for a new trace: nothing of the old one is counted in it.

        Returns:
            What was not handed over by now; `buffer` and `definitions` are others from now on.
        """
        left = self.in_flight.begin_again()
        self.buffer, self.definitions = deque(), deque()
        self.dropped = self.lost_stalls = 0
        self.samples = self.sampled_cost_ns = self.steps = 0
        self.first_id = next(self.ids)
        self.scope, self.phases, self.step_start_ns = OUTSIDE, [], clock()
        for listener in self.world_listeners:
            listener()
        return left

    def cost_ns(self) -> int:
        """Estimate what hooks have taken of the training threads in this trace.

        A collective's record was timed now and then; whatever else hooks number costs about as
        much. Phases and waits are left out: in `benchmarks/overhead_hooks.py` it is 50 to 90 % of
        what all hooks take.
        """
        numbered = next(self.ids) - self.first_id
        return self.sampled_cost_ns * numbered // self.samples if self.samples else 0

    def fail(self, hook: str, error: BaseException) -> None:
        """Remember that a hook broke; the caller makes it inert.

        Raises:
            BaseException: `error`, where a signal handler of the user raised it while a hook ran.
        """
        raise_if_of_signal_handler(error)
        if hook not in self.failures:
            self.failures[hook] = f"{type(error).__name__}: {error}"
            with suppress(Exception):  # a failure that cannot be told harms nobody
                self.on_failure(hook)

    # -- contexts -----------------------------------------------------------------------------

    def context(self) -> Context:
        """Return on whose behalf this thread communicates."""
        return self.contexts.get(get_ident(), NOBODY)

    def become(self, context: Context) -> None:
        """Communicate on behalf of `context` from now on, in this thread."""
        if context is NOBODY:
            self.contexts.pop(get_ident(), None)
        else:
            self.contexts[get_ident()] = context

    def flushing(self, outer: Context, flush: int) -> Context:
        """Return what to become for a flush.

        It belongs to the line that called backward: autograd's own thread has no frame of that, and
        where there is one, the walk up to it costs more than the record.
        """
        return Context(outer.request, outer.requested, flush, outer.fetch, site=self.scope.site)

    # -- steps and phases ---------------------------------------------------------------------

    def enter(self, phase: str, engine: int = -1, micro_step: int = -1, site: int = 0) -> Phase:
        """Begin a phase; give what it returns to `leave`.

        `micro_step` is that of the engine where engines take turns; by default the last one.
        `site` is from where the user began it.
        """
        now = clock()
        with self._progress:
            while True:
                at = self.scope
                number = at.micro_step if micro_step < 0 else micro_step
                scope = Scope(at.step if at.step > 0 else 0, number, phase, engine, site)
                if self._replace(at, scope):
                    break
            if at.step < 0:
                self.step_start_ns = now
            entered = Phase(
                now, 0, scope.step, number, engine, name=phase, thread=get_ident(), scope=scope
            )
            self.phases.append(entered)
        return entered

    def leave(self, entered: Phase) -> None:
        """End a phase. Steps may have ended meanwhile, and phases need not end in turn."""
        if not self.recording:
            return
        entered.end_ns = clock()
        with self._progress:
            if not self._close(entered):  # it began in a trace that has ended
                return
            self.add(entered)
            outer = self.phases[-1].scope if self.phases else OUTSIDE
            while True:
                at = self.scope
                scope = Scope(at.step, at.micro_step, outer.phase, outer.engine, outer.site)
                if self._replace(at, scope):
                    break

    def _close(self, entered: Phase) -> bool:
        """Take a phase out of the open ones; tell whether it was among them."""
        phases = self.phases
        if phases and phases[-1] is entered:
            phases.pop()
            return True
        for at, phase in enumerate(phases):
            if phase is entered:
                del phases[at]
                return True
        return False

    def _replace(self, at: Scope, following: Scope) -> bool:
        """Replace the scope `at` by what follows from it, with `_progress` held.

        False if a signal handler has moved it meanwhile: the lock keeps other threads out, but not
        what runs in this one.
        """
        if self.scope is not at:
            return False
        self.scope = following
        return True

    def end_micro_step(self) -> None:
        """Count a micro-step that ended without an optimizer step."""
        if not self.recording:
            return
        with self._progress:
            while True:
                at = self.scope
                following = Scope(at.step, at.micro_step + 1, at.phase, at.engine, at.site)
                if self._replace(at, following):
                    break

    def end_step(self, source: str, engine: int = -1, micro_steps: int = 0) -> None:
        """Count an optimizer step; of several sources of steps only the best one counts.

        `micro_steps` are those of the engine where engines take turns.
        """
        if not (self.recording and self._is_counted(source)):
            return
        self._guarded("recorder", self.in_flight.poll_all)
        with self._progress:
            now = clock()
            while True:
                at = self.scope
                step = max(at.step, 0)
                if self._replace(at, Scope(step + 1, 0, at.phase, at.engine, at.site)):
                    break
            start_ns, self.step_start_ns = self.step_start_ns, now
            count = micro_steps or at.micro_step + 1
            self.add(Step(step, start_ns, now, count, source, engine))
            self.steps += 1
        self.in_flight.unheld.end_step(step)
        for listener in self.step_listeners:
            self._guarded(listener.__qualname__, listener, step)

    def _is_counted(self, source: str) -> bool:
        """Tell whether steps of `source` count.

        A better source takes over without a step of its own: the lesser one has just counted it.
        """
        if source == self.step_source:
            return True
        with self._progress:
            best = self.step_source or source
            self.step_source = max(best, source, key=_SOURCES.index)
        return best == source

    def meet_engine(self, engine: Any, number: int) -> None:
        """Tell listeners of a DeepSpeed engine that is met for the first time, and its number."""
        for listener in self.engine_listeners:
            self._guarded(listener.__qualname__, listener, engine, number)

    def _guarded(self, name: str, call: Callable[..., None], *args: Any) -> None:
        """Do what must not fail the step of the user, nor what else follows it."""
        try:
            call(*args)
        except Exception as error:
            self.fail(name, error)

    # -- records ------------------------------------------------------------------------------

    def add(self, record: Record) -> None:
        """Hand a finished record to the writer."""
        if len(self.buffer) < BUFFER_RECORDS:
            self.buffer.append(record)
        else:
            self.dropped += 1

    def _on_no_device(self, record: Collective, work: Any) -> None:
        """Hand over a collective that runs on a device, where no hook follows it."""
        self.add(record)

    def define(self, definition: Any) -> None:
        """Hand the writer a description (group, site, engine, hook status)."""
        self.definitions.append(definition)


def _nothing(*args: Any) -> None:
    """Nobody wants to know."""
