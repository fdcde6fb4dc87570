"""The progress of training: steps, and the phases within them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import get_ident

from dsprof.recording.recorder.hot_state import compiled
from dsprof.recording.recorder.in_flight import InFlight
from dsprof.recording.recorder.listeners import Listeners
from dsprof.recording.recorder.outbox import Outbox
from dsprof.trace.schema import Phase, Step
from dsprof.trace.scope import OUTSIDE, Scope, clock

_SOURCES = ("optimizer", "deepspeed", "user")  # of steps, the best one last


class Progress:
    """Follows steps and phases, and hands over the record of each.

    Any thread may train, and changes all of it with `_lock` held. `scope` is read without: it is
    replaced as a whole. Nothing is locked once recording has ended, nor in a forked child.
    """

    def __init__(
        self,
        outbox: Outbox,
        in_flight: InFlight,
        fail: Callable[[str, BaseException], None],
    ) -> None:
        hot = self._hot = in_flight.hot
        hot.scope, hot.phases, hot.step_start_ns = OUTSIDE, [], 0
        self.steps = 0  # of this trace
        self.taken_before = -1  # steps of training before its first one, where a hook learnt it
        self.step_source = ""
        self.step_listeners: Listeners[[int]] = Listeners(fail)
        # Told of steps 0, 1, 3, 7 and so on: of what looks again for what may come late.
        self.rare_step_listeners: Listeners[[int]] = Listeners(fail)
        self._outbox, self._in_flight, self._fail = outbox, in_flight, fail
        # Re-entrant: a signal handler of the user may train, too.
        self._lock = threading.RLock()
        if compiled is not None:
            self.is_in = hot.is_in  # type: ignore[method-assign, assignment]
            self.enter = hot.enter  # type: ignore[method-assign]
            self.leave = hot.leave  # type: ignore[method-assign, assignment]
            self.end_micro_step = hot.end_micro_step  # type: ignore[method-assign]
            self._next_step = hot.next_step  # type: ignore[method-assign, assignment]

    @property
    def scope(self) -> Scope:
        """Where training stands; hooks that run often read it where it is kept, in `hot`."""
        return self._hot.scope

    @scope.setter
    def scope(self, scope: Scope) -> None:
        self._hot.scope = scope

    def begin_again(self) -> None:
        """Forget all phases and steps, for a new trace."""
        hot = self._hot
        hot.scope, hot.phases, hot.step_start_ns = OUTSIDE, [], clock()
        self.steps, self.taken_before = 0, -1

    def is_in(self, phase: str, engine: int) -> bool:
        """Tell whether an engine is in a phase."""
        scope = self.scope
        return scope.phase == phase and scope.engine == engine

    def enter(self, phase: str, engine: int = -1, micro_step: int = -1, site: int = 0) -> Phase:
        """Begin a phase; give what it returns to `leave`.

        `micro_step` is that of the engine where engines take turns; by default the last one.
        `site` is from where the user began it.
        """
        now = clock()
        with self._lock:
            while True:
                at = self.scope
                number = at.micro_step if micro_step < 0 else micro_step
                scope = Scope(at.step if at.step > 0 else 0, number, phase, engine, site)
                if self._replace(at, scope):
                    break
            if at.step < 0:
                self._hot.step_start_ns = now
            entered = Phase(
                now, 0, scope.step, number, engine, name=phase, thread=get_ident(), scope=scope
            )
            self._hot.phases.append(entered)
        return entered

    def leave(self, entered: Phase) -> None:
        """End a phase. Steps may have ended meanwhile, and phases need not end in turn."""
        if not self._hot.recording:
            return
        entered.end_ns = clock()
        with self._lock:
            if not self._close(entered):  # it began in a trace that has ended
                return
            self._outbox.add(entered)
            phases = self._hot.phases
            outer = phases[-1].scope if phases else OUTSIDE
            while True:
                at = self.scope
                scope = Scope(at.step, at.micro_step, outer.phase, outer.engine, outer.site)
                if self._replace(at, scope):
                    break

    def _close(self, entered: Phase) -> bool:
        """Take a phase out of the open ones; tell whether it was among them."""
        phases = self._hot.phases
        for at, phase in enumerate(phases):
            if phase is entered:
                del phases[at]
                return True
        return False

    def _replace(self, at: Scope, following: Scope) -> bool:
        """Replace the scope `at` by what follows from it, with the lock held.

        False if a signal handler has moved it meanwhile: the lock keeps other threads out, but not
        what runs in this one.
        """
        if self.scope is not at:
            return False
        self.scope = following
        return True

    def end_micro_step(self) -> None:
        """Count a micro-step that ended without an optimizer step."""
        if not self._hot.recording:
            return
        with self._lock:
            while True:
                at = self.scope
                following = Scope(at.step, at.micro_step + 1, at.phase, at.engine, at.site)
                if self._replace(at, following):
                    break

    def end_step(self, source: str, engine: int = -1, micro_steps: int = 0) -> None:
        """Count an optimizer step; of several sources of steps only the best one counts.

        `micro_steps` are those of the engine where engines take turns.
        """
        hot = self._hot
        if not (hot.recording and (source == self.step_source or self._is_counted(source))):
            return
        if hot.works:
            try:
                self._in_flight.poll_all()
            except Exception as error:
                self._fail("recorder", error)
        with self._lock:
            before, self.taken_before = self.taken_before, -1
            step = self._next_step(source, engine, micro_steps, before)
            self.steps += 1
        if self._in_flight.cpp_waits:
            self._in_flight.cpp_waits.end_step(step)
        self.step_listeners.tell(step)
        if not step & step + 1:
            self.rare_step_listeners.tell(step)

    def _next_step(self, source: str, engine: int, micro_steps: int, taken_before: int) -> int:
        """Record the step that ends, with the lock held, and begin the next; return its number."""
        now, hot = clock(), self._hot
        while True:
            at = self.scope
            step = max(at.step, 0)
            if self._replace(at, Scope(step + 1, 0, at.phase, at.engine, at.site)):
                break
        count = micro_steps or at.micro_step + 1
        start_ns, hot.step_start_ns = hot.step_start_ns, now
        self._outbox.add(Step(step, start_ns, now, count, source, engine, taken_before))
        return step

    def expect_steps_of(self, source: str) -> None:
        """Know who will mark steps before the first one ends, unless a step has told already."""
        self.step_source = self.step_source or source

    def forget_steps_of(self, source: str) -> None:
        """Let any source mark steps again, if `source` did."""
        if self.step_source == source:
            self.step_source = ""

    def _is_counted(self, source: str) -> bool:
        """Tell whether steps of `source` count.

        A better source takes over without a step of its own: the lesser one has just counted it.
        """
        with self._lock:
            best = self.step_source or source
            self.step_source = max(best, source, key=_SOURCES.index)
        return best == source
