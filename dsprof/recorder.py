"""Recorder: where hooks leave what they saw. It never raises, and holds nothing of the user's.

The one exception: on CPU backends `in_flight` keeps a Work until it is complete, because only the
object that is kept can be recognised when it is waited for.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

from dsprof.events import Collective, Context, Phase, Record, Scope, Step
from dsprof.unheld import Unheld

clock = time.perf_counter_ns

BUFFER_RECORDS = 200_000
"""Records that may wait for the writer; more are dropped and counted."""

LOOKED_AT, POLLED = 32, 4
"""A hook looks at so many collectives in flight, and stops at so many pending; step ends go on."""

IN_FLIGHT = 10_000
"""Collectives that are followed at once; some backends never say that one is complete."""

FOREIGN_AFTER_NS = 1_000_000_000
"""By then the caller in another thread has its Work, or never wanted it."""

COST_SAMPLE = 8
"""Every so many collectives the hook times itself."""

NOTICEABLE_NS = 100_000
"""A wait for a collective that is already complete, or was waited for before, takes less."""

_OUTSIDE = Scope(step=-1, micro_step=0, phase="")

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


class DeviceWatch(Protocol):
    """What a device's hook offers to the hooks of the wire and of waits."""

    def begin(self) -> None:
        """A collective is about to be issued in this thread."""

    def holds(self, work: Any) -> bool:
        """Tell whether `work` is the device's to wait for."""

    def wait(self, work: Any, call: Callable[[], Any]) -> Any:
        """Return what `call` does, which waits for `work`; time it on the waiting stream."""

    def join(self, coalesced: int, work: Any) -> None:
        """`work` stands for the batch of this number, whose Works nobody waits for."""

    def open(self) -> Any:
        """C++ is about to wait on the current stream; returns what `close` wants."""

    def close(self, opened: Any, records: list[Collective]) -> None:
        """C++ has waited for `records`, in the order of issue; the last one owns the time."""


class Recorder:
    """Takes records from hooks in any thread; a writer drains `buffer`."""

    def __init__(self, on_first_collective: Callable[[], bool]) -> None:
        self.on_new_world: Callable[[], None] = _nothing  # told of each new default group
        self.on_cpp: Callable[[], None] = _nothing  # told before C++ first communicates by itself
        self.world_listeners: list[Callable[[], None]] = []  # told of each new trace
        self.recording = False
        self.stopped = False
        self.scope = _OUTSIDE
        self.contexts: dict[int, Context] = {}  # thread -> on whose behalf it communicates
        self.buffer: deque[Record] = deque()
        self.definitions: deque[Any] = deque()  # structs of dsprof.trace.format, written first
        self.in_flight: dict[int, tuple[Any, Collective]] = {}
        self.blocking: dict[int, Collective] = {}  # thread -> its sync call that is under way
        self.announced: set[int] = set()  # threads in a method that records the collective itself
        self.completed: dict[int, tuple[weakref.ref[Any], Collective]] = {}
        self.device: DeviceWatch | None = None  # once collectives run on a device
        self.on_device: Callable[[Collective, Any], None] = self._on_no_device
        self.enqueued: dict[int, Collective] = {}  # on a device, not waited for yet
        self.lost_stalls = 0
        self.captured = 0  # collectives that went into graphs of a device
        # Told of each asynchronous collective on the host, with what it writes to.
        self.followers: tuple[Callable[[Collective, Any], None], ...] = ()
        self.unheld = Unheld(self.add)
        self.inner_waits: dict[int, int] = {}  # thread -> end of the last wait of a Python handle
        self.ids = itertools.count(1)  # of collectives, requests, flushes and fetches
        self.cost_samples = itertools.count(1)
        self.groups: Any = None  # the hooks' own, shared between them
        self.group_ids = itertools.count(1)
        self.site_ids = itertools.count(1)
        self.dropped = 0
        self.unmatched_waits = 0
        self.given_up = 0  # collectives that were in flight for too long to be followed
        self.sampled_cost_ns = 0
        self.failures: dict[str, str] = {}
        self.phases: list[Phase] = []  # begun and not ended, in this order
        self.step_start_ns = 0
        self.steps = 0
        self.loop = Loop()
        self.step_source = ""
        self.step_listeners: list[Callable[[int], None]] = []
        self.roles: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # of groups
        self.reduce_op_name: Callable[[Any], str] = str
        self._on_first_collective = on_first_collective
        self._arming = threading.RLock()
        # in_flight and completed, as one. Re-entrant: a signal handler or a finaliser of the user
        # may communicate while this very thread holds it.
        self._tables = threading.RLock()

    # -- life ---------------------------------------------------------------------------------

    def arm(self) -> bool:
        """Start recording if a process group is up; called at each collective until it is."""
        if self.stopped:
            return False
        with self._arming:
            try:
                if not self.recording and self._on_first_collective():
                    self.step_start_ns = clock()
                    self.recording = True
            except Exception as error:
                self.fail("session", error)
                self.stopped = True
        return self.recording

    def stop(self) -> None:
        """Record no more; hooks that stay in someone's chain only pass calls through."""
        self.recording = False
        self.stopped = True

    def begin_again(self) -> list[Collective]:
        """Begin anew for a new trace: nothing of the old one is counted in it.

        Returns:
            What was not handed over by now; `buffer` and `definitions` are others from now on.
        """
        with self._tables:
            left = self.unfinished()
            for table in (self.in_flight, self.completed, self.blocking, self.enqueued):
                table.clear()
            self.unheld = Unheld(self.add)
        self.buffer, self.definitions = deque(), deque()
        self.dropped = self.unmatched_waits = self.given_up = self.lost_stalls = 0
        self.sampled_cost_ns = self.steps = 0
        self.scope, self.phases, self.step_start_ns = _OUTSIDE, [], clock()
        for listener in self.world_listeners:
            listener()
        return left

    def fail(self, hook: str, error: BaseException) -> None:
        """Remember that a hook broke; the caller makes it inert."""
        self.failures.setdefault(hook, f"{type(error).__name__}: {error}")

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

    # -- steps and phases ---------------------------------------------------------------------

    def enter(self, phase: str, engine: int = -1, micro_step: int = -1) -> Phase:
        """Begin a phase; give what it returns to `leave`.

        `micro_step` is that of the engine where engines take turns; by default the last one.
        """
        outer = self.scope
        now = clock()
        if outer.step < 0:
            self.step_start_ns = now
        micro_step = outer.micro_step if micro_step < 0 else micro_step
        scope = self.scope = Scope(max(outer.step, 0), micro_step, phase, engine)
        entered = Phase(phase, scope, now, 0, get_ident())
        self.phases.append(entered)
        return entered

    def leave(self, entered: Phase) -> None:
        """End a phase. Steps may have ended meanwhile, and phases need not end in turn."""
        entered.end_ns = clock()
        others = [phase for phase in self.phases if phase is not entered]
        if len(others) < len(self.phases):  # else it began in a trace that has ended
            self.add(entered)
        self.phases = others
        outer = self.phases[-1].scope if self.phases else _OUTSIDE
        scope = self.scope
        self.scope = Scope(scope.step, scope.micro_step, outer.phase, outer.engine)

    def end_micro_step(self) -> None:
        """Count a micro-step that ended without an optimizer step."""
        scope = self.scope
        self.scope = Scope(scope.step, scope.micro_step + 1, scope.phase, scope.engine)

    def end_step(self, source: str, engine: int = -1, micro_steps: int = 0) -> None:
        """Count an optimizer step; of several sources of steps only the best one counts.

        A better source takes over without a step of its own: the lesser one has just counted it.
        `micro_steps` are those of the engine where engines take turns.
        """
        if self.step_source not in ("", source):
            if _SOURCES.index(source) > _SOURCES.index(self.step_source):
                self.step_source = source
            return
        self.step_source = source
        now, scope = clock(), self.scope
        step = max(scope.step, 0)
        self._guarded("recorder", self.poll_all)
        micro_steps = micro_steps or scope.micro_step + 1
        self.add(Step(step, micro_steps, self.step_start_ns, now, source, engine))
        self.unheld.end_step(step)
        self.step_start_ns = now
        self.steps += 1
        self.scope = Scope(step + 1, 0, scope.phase, scope.engine)
        for listener in self.step_listeners:
            self._guarded(listener.__qualname__, listener, step)

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

    def poll(self, most: int = LOOKED_AT, pending: int = POLLED) -> None:
        """Note which collectives in flight are complete by now, the oldest first.

        Backends complete about in order, so the search ends after a few that are `pending`. Only
        collectives of this thread count, whose caller has had its Work by now: letting go of a
        Work that is still on its way to the caller would lose its identity.
        """
        now, thread = clock(), get_ident()
        with self._tables:
            for key, (work, record) in list(itertools.islice(self.in_flight.items(), most)):
                is_here = record.thread == thread or now - record.issue_ns > FOREIGN_AFTER_NS
                try:
                    is_done = is_here and work.is_completed()
                except Exception:
                    is_done = True
                if is_done:
                    if self.in_flight.pop(key, None) is not None:  # not just waited for elsewhere
                        record.done_ns = record.done_ns or now
                        self._let_go(key, work, record)
                    continue
                if is_here:
                    record.pending_ns = now
                pending -= 1
                if not pending:
                    break

    def poll_all(self) -> None:
        """Note which of all collectives in flight are complete by now."""
        in_flight = len(self.in_flight)
        if in_flight:
            self.poll(in_flight, in_flight)

    def _let_go(self, key: int, work: Any, record: Collective) -> None:
        """Let go of a Work that is complete, but know it if it is waited for later."""

        def gone(_: object) -> None:
            if self.completed.pop(key, None) is not None:
                keep = self.unheld.put if self.followers else self.add
                keep(record)

        known = self.completed.get(key)
        if known is not None:  # a library's one Work for all that is done at once
            self.add(known[1])
        self.completed[key] = (weakref.ref(work, gone), record)

    def lend(self, work: Any) -> None:
        """Go on without keeping `work` or asking it anything; a wait for it will be known."""
        entry = self.in_flight.pop(id(work), None)
        if entry is not None:
            self._let_go(id(work), *entry)

    def expect(self, work: Any, record: Collective) -> None:
        """Know a wait for `work`, which is somebody's own handle; it is not kept."""
        try:
            self._let_go(id(work), work, record)
        except TypeError:  # it cannot be referred to weakly
            self.add(record)

    def is_awaited(self, work: Any) -> bool:
        """Tell whether the end of a wait for `work` would find its collective."""
        lent = self.completed.get(id(work))
        is_lent = lent is not None and lent[0]() is work
        return is_lent or id(work) in self.in_flight or get_ident() in self.blocking

    def waited(self, work: Any, start_ns: int, end_ns: int, finished: bool) -> None:
        """Note a wait that has ended, and hand over the record of what was waited for.

        `finished` is false if the wait raised; then nothing is known of the completion.
        """
        try:
            # Without the lock first: a hook's poll, which may hold it, is rarely in between.
            record = self.blocking.pop(get_ident(), None) if self.blocking else None
            if record is None:
                entry = self.in_flight.pop(id(work), None)
                record = entry[1] if entry is not None else self._known(work)
                if record is None:
                    if self.inner_waits.get(get_ident(), 0) < start_ns:
                        self.unmatched_waits += end_ns - start_ns > NOTICEABLE_NS
                    return
            if finished and not record.done_ns:
                record.done_ns = end_ns
            record.wait_ns = start_ns
            record.waited_ns = end_ns
            record.blocked_ns = end_ns - start_ns
            record.waits = 1
            if len(self.buffer) < BUFFER_RECORDS:
                self.buffer.append(record)
            else:
                self.dropped += 1
        except Exception as error:
            self.fail("work", error)

    def _known(self, work: Any) -> Collective | None:
        """Take the record of an asynchronous collective out of the tables, by its Work."""
        key = id(work)
        with self._tables:
            entry = self.in_flight.pop(key, None)
            if entry is not None:
                return entry[1]
            done = self.completed.get(key)
            if done is None or done[0]() is not work:
                return None
            del self.completed[key]
            return done[1]

    def take_unheld(self, wanted: Callable[[Collective], bool]) -> list[Collective]:
        """Take the collectives, pending ones too, whose Work nobody holds but this recorder."""
        with self._tables:
            for key, record in [(key, entry[1]) for key, entry in list(self.in_flight.items())]:
                if wanted(record) and self._is_unheld(key):
                    self.unheld.put(record)
        return self.unheld.take(wanted)

    def _is_unheld(self, key: int) -> bool:
        """Let go of a Work in flight, and take it back if that was not its end."""
        entry = self.in_flight.pop(key, None)
        if entry is None:  # waited for meanwhile, in another thread
            return False
        work, record = entry
        ref = weakref.ref(work)
        del entry, work
        work = ref()
        if work is not None:
            self.in_flight[key] = (work, record)
        return work is None

    def join(self, coalesced: int, work: Any) -> None:
        """Know `work` as what stands for a batch: its last collective has it, the others go."""
        if self.device is not None:
            self.device.join(coalesced, work)
        with self._tables:
            batch = [
                (key, record)
                for key, (_, record) in list(self.in_flight.items())
                if record.context.coalesced == coalesced
            ]
            for key, record in batch:
                if self.in_flight.pop(key, None) is not None and record is not batch[-1][1]:
                    self.add(record)
            if batch:
                self.in_flight[id(work)] = (work, batch[-1][1])

    def tell_followers(self, record: Collective | None, outputs: Any) -> None:
        """Tell followers of a collective, if it is asynchronous and has a wait to be seen."""
        if record is None or not record.is_async:
            return
        if record.pending_ns or self.device is not None:
            for follow in self.followers:
                self._guarded(follow.__qualname__, follow, record, outputs)

    def take_outputs(self, storage: int) -> list[Collective]:
        """Take the collectives that write to a storage out of the tables, in order of issue."""
        with self._tables:
            flying = [
                key
                for key, (_, record) in list(self.in_flight.items())
                if storage in record.outputs
            ]
            entries = [self.in_flight.pop(key, None) for key in flying]
        found = self.unheld.take(lambda record: storage in record.outputs)
        found += [entry[1] for entry in entries if entry is not None]
        return sorted(found, key=lambda record: record.id)

    def waited_in_cpp(
        self,
        records: list[Collective],
        start_ns: int,
        end_ns: int,
        *,
        finished: bool = True,
        estimated: bool = False,
        opened: Any = None,
    ) -> None:
        """Note one wait for several collectives, and hand them over; the last one owns the time.

        `opened` is what `DeviceWatch.open` gave before the wait.
        """
        if self.device is not None:
            self.device.close(opened, records)
        for record in records:
            if finished and record.pending_ns and not record.done_ns:  # on the host
                record.done_ns = end_ns
            record.wait_ns, record.waited_ns, record.waits = start_ns, end_ns, 1
            record.is_estimated = estimated
            record.blocked_ns = end_ns - start_ns if record is records[-1] else 0
            self.add(record)

    def unfinished(self) -> list[Collective]:
        """Return the records not handed over yet; those of complete ones have their `done_ns`.

        For the writer's thread: it looks, and lets go only of what is old or too much. It holds no
        Work outside the lock, for others have to see which ones nobody holds.
        """
        with self._tables:
            self._give_up_oldest()
            self.poll_all()  # a Work holds tensors, and no other hook may ever come along
            kept = [_look(*entry) for entry in list(self.in_flight.values())]
            kept += [record for _, record in list(self.completed.values())]
        return [
            *self.blocking.values(),
            *list(self.enqueued.values()),
            *kept,
            *self.unheld.records(),
        ]

    def _give_up_oldest(self) -> None:
        """Hand over the oldest records in flight, complete or not, when there are too many."""
        excess = len(self.in_flight) - IN_FLIGHT
        for key in list(itertools.islice(self.in_flight, max(excess, 0))):
            entry = self.in_flight.pop(key, None)
            if entry is not None:
                self.given_up += 1
                self.add(entry[1])


def _nothing() -> None:
    """Nobody wants to know."""


def _is_completed(work: Any) -> bool:
    """Ask a Work; one that cannot answer is not asked again."""
    try:
        return bool(work.is_completed())
    except Exception:
        return True


def _look(work: Any, record: Collective) -> Collective:
    """Note whether a collective is complete."""
    if not record.done_ns and _is_completed(work):
        record.done_ns = clock()
    return record
