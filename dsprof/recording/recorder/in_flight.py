"""Collectives that are issued and not handed over: followed until they are complete, or waited for.

On CPU backends a Work is kept until it is complete, because only the object that is kept can be
recognised when it is waited for. That of a send or receive is kept until its caller has it: gloo
calls none complete before a wait. Nothing else of the user's is held.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

from dsprof.recording.recorder.cpp_waits import CppWaits
from dsprof.recording.recorder.hot_state import HotState, compiled
from dsprof.recording.recorder.interrupts import raise_if_of_signal_handler
from dsprof.recording.recorder.live_state import LiveState, writers_in_c
from dsprof.trace.collectives import POINT_TO_POINT
from dsprof.trace.dumps.state_file import UNFOLLOWED
from dsprof.trace.schema import Collective
from dsprof.trace.scope import clock

LOOKED_AT, POLLED = 32, 4
"""A hook looks at so many collectives in flight, and stops at so many pending; step ends go on."""

IN_FLIGHT = 10_000
"""Collectives that are followed at once; some backends never say that one is complete."""

FOREIGN_AFTER_NS = 1_000_000_000
"""After this time a caller in another thread has its Work, or never wanted it."""

NOTICEABLE_NS = 100_000
"""A wait for a collective that is already complete, or was waited for before, takes less."""


class DeviceWatch(Protocol):
    """The service of a device's hook to the hooks of the wire and of waits."""

    def begin(self) -> None:
        """A collective is about to be issued in this thread."""

    def holds(self, work: Any) -> bool:
        """Tell whether `work` is the device's to wait for."""

    def wait(self, work: Any, call: Callable[[], Any]) -> Any:
        """Return what `call` does, which waits for `work`; time it on the waiting stream."""

    def join(self, coalesced: int, work: Any) -> None:
        """`work` is that of the batch of this number; None: the current stream has run it."""

    def entered(self) -> list[Collective]:
        """Return the collectives that the device has entered and not left, in the order of issue.

        For the watchdog's thread, while the one that trains does not go on.
        """

    def end_trace(self) -> None:
        """Hand over what the device has passed by now, and forget the rest, for a new trace."""

    def open(self) -> Any:
        """C++ is about to wait on the current stream; returns what `close` wants."""

    def close(self, opened: Any, records: list[Collective]) -> None:
        """C++ has waited for `records`, in the order of issue; the last one owns the time."""


class InFlight:
    """Finds the collective that a wait is for, by its Work, its thread or what it writes to.

    Threads that communicate, wait or end a step change it, and the writer's thread looks for what
    is unfinished. `works` and `completed` are changed as one with `_tables` held; whoever takes a
    record out of a table pops it, so that one thread gets it, and needs no lock.
    """

    def __init__(
        self,
        hot: HotState,
        add: Callable[[Collective], None],
        fail: Callable[[str, BaseException], None],
    ) -> None:
        self.hot = hot
        self.blocking: dict[int, Collective] = {}  # thread -> its sync call in flight
        self.completed: dict[int, tuple[weakref.ref[Any], Collective]] = {}
        self.enqueued: dict[int, Collective] = {}  # on a device, not waited for yet
        self.device_waits: dict[int, Collective] = {}  # thread -> what it waits for on a device
        self.cpp_waits = CppWaits(add)
        self.state = LiveState()
        if compiled is not None:
            self.state.make_writers = functools.partial(writers_in_c, hot)
        hot.works, hot.blocking, hot.completed = {}, self.blocking, self.completed
        hot.keep = self._keep
        self.device = None
        # Given each collective that runs on a device, with its Work.
        self.on_device: Callable[[Collective, Any], None] = lambda record, work: self._add(record)
        self.followers = ()
        self.inner_waits: dict[int, int] = {}  # thread -> end of the last wait of a Python handle
        self.unmatched_waits = 0
        self.given_up = 0  # collectives that were in flight for too long to be followed
        self.lost_stalls = 0  # of a device, whose end was never seen
        self.captured = 0  # collectives that went into graphs of a device
        self._add = add
        self._fail = fail
        # `works` and `completed`, as one. Re-entrant: a signal handler or a finaliser of the user
        # may communicate while this very thread holds it.
        self._tables = threading.RLock()

    @property
    def works(self) -> dict[int, tuple[Any, Collective]]:
        """Collectives in flight and their Work, by its identity. Read this anew after a call."""
        return self.hot.works

    @property
    def device(self) -> DeviceWatch | None:
        """Watches collectives, once they run on a device."""
        device: DeviceWatch | None = self.hot.device
        return device

    @device.setter
    def device(self, device: DeviceWatch | None) -> None:
        self.hot.device = device

    @property
    def followers(self) -> tuple[Callable[[Collective, Any], None], ...]:
        """Calls for each asynchronous collective on the host, with what it writes to."""
        return self.hot.followers

    @followers.setter
    def followers(self, followers: tuple[Callable[[Collective, Any], None], ...]) -> None:
        self.hot.followers = followers

    def begin_again(self) -> list[Collective]:
        """Forget all for a new trace; returns what was not handed over by now."""
        if self.device is not None:
            self.device.end_trace()
        left = self.end_trace()
        self.unmatched_waits = self.given_up = self.lost_stalls = 0
        return left

    def end_trace(self) -> list[Collective]:
        """Hand over what is done, and forget the rest, which is returned."""
        with self._tables:
            left = self.unfinished()
            for table in (
                *(self.works, self.completed, self.blocking),
                *(self.enqueued, self.device_waits),
            ):
                table.clear()
            self.cpp_waits = CppWaits(self._add)
        return left

    def poll(self, most: int = LOOKED_AT, pending: int = POLLED) -> None:
        """Note which collectives in flight are complete by now, the oldest first.

        Backends complete about in order, so the search ends after a few that are `pending`. Only
        collectives of this thread count, whose caller has had its Work by now: dropping a
        Work that is still on its way to the caller would lose its identity.
        """
        now, thread = clock(), get_ident()
        with self._tables:
            for key, (work, record) in list(itertools.islice(self.works.items(), most)):
                is_here = record.thread == thread or now - record.issue_ns > FOREIGN_AFTER_NS
                try:  # as `_is_completed`, but in line: it runs more often than all else here
                    is_done = is_here and work.is_completed()
                except Exception as error:
                    raise_if_of_signal_handler(error)
                    is_done = True
                if is_done:
                    if self.works.pop(key, None) is not None:  # not just waited for elsewhere
                        record.done_ns = record.done_ns or now
                        self.state.done(record.id, record.done_ns)
                        self._let_go(key, work, record)
                    continue
                if is_here and record.op in POINT_TO_POINT and not record.coalesced:
                    if self.works.pop(key, None) is not None:
                        self.state.done(record.id, UNFOLLOWED)
                        self._let_go(key, work, record)
                    continue
                if is_here:
                    record.pending_ns = now
                pending -= 1
                if not pending:
                    break

    def poll_all(self) -> None:
        """Note which of all collectives in flight are complete by now."""
        in_flight = len(self.works)
        if in_flight:
            self.poll(in_flight, in_flight)

    def _let_go(self, key: int, work: Any, record: Collective) -> None:
        """Drop a Work that is complete, but recognise it if it is waited for later."""

        def gone(_: object) -> None:
            if self.completed.pop(key, None) is not None:
                self._keep(record)

        known = self.completed.get(key)
        if known is not None:  # a library's one Work for all that is done at once
            self._add(known[1])
        self.completed[key] = (weakref.ref(work, gone), record)

    def _keep(self, record: Collective) -> None:
        """Take a record whose Work is gone, and was not waited for where it could be seen."""
        (self.cpp_waits.put if self.followers else self._add)(record)

    def lend(self, work: Any) -> None:
        """Go on without keeping `work` or asking it anything; a wait for it will be known."""
        entry = self.works.pop(id(work), None)
        if entry is not None:
            self._let_go(id(work), *entry)

    def expect(self, work: Any, record: Collective) -> None:
        """Know a wait for `work`, which is somebody's own handle; it is not kept."""
        try:
            self._let_go(id(work), work, record)
        except TypeError:  # it cannot be referred to weakly
            self._add(record)

    def is_awaited(self, work: Any) -> bool:
        """Tell whether the end of a wait for `work` would find its collective."""
        lent = self.completed.get(id(work))
        is_lent = lent is not None and lent[0]() is work
        return is_lent or id(work) in self.works or get_ident() in self.blocking

    def waited(self, work: Any, start_ns: int, end_ns: int, finished: bool) -> None:
        """Note a wait that has ended, and hand over the record of what was waited for.

        `finished` is false if the wait raised; completion is then unknown.
        """
        try:
            # Without the lock first: a hook's poll, which may hold it, is rarely in between.
            record = self.blocking.pop(get_ident(), None) if self.blocking else None
            if record is None:
                entry = self.works.pop(id(work), None)
                record = entry[1] if entry is not None else self._known(work)
                if record is None:
                    if self.inner_waits.get(get_ident(), 0) < start_ns:
                        self.unmatched_waits += end_ns - start_ns > NOTICEABLE_NS
                    return
            if finished and not record.done_ns:
                record.done_ns = end_ns
            if record.pending_ns:
                self.state.done(record.id, record.done_ns or -end_ns)
            record.wait_ns = start_ns
            record.waited_ns = end_ns
            record.blocked_ns = end_ns - (start_ns if record.is_async else record.issue_ns)
            record.waits = 1
            self._add(record)
        except Exception as error:
            self._fail("work", error)

    def _known(self, work: Any) -> Collective | None:
        """Take the record of an asynchronous collective out of the tables, by its Work."""
        key = id(work)
        with self._tables:
            entry = self.works.pop(key, None)
            if entry is not None:
                return entry[1]
            done = self.completed.get(key)
            if done is None or done[0]() is not work:
                return None
            del self.completed[key]
            return done[1]

    def take_unheld(
        self, wanted: Callable[[Collective], bool], *, with_pending: bool
    ) -> list[Collective]:
        """Take complete collectives that only C++ held, and pending ones that it has released.

        The first ones come in the order of issue.
        """
        if not with_pending:
            self.poll_all()  # drops the Works that are complete
            return sorted(self.cpp_waits.take(wanted), key=lambda record: record.id)
        with self._tables:
            for key, record in [(key, entry[1]) for key, entry in list(self.works.items())]:
                if wanted(record) and self._is_unheld(key):
                    self.cpp_waits.put(record)
        return self.cpp_waits.take(wanted)

    def _is_unheld(self, key: int) -> bool:
        """Drop a Work in flight, and take it back if that was not its end."""
        entry = self.works.pop(key, None)
        if entry is None:  # waited for meanwhile, in another thread
            return False
        work, record = entry
        ref = weakref.ref(work)
        del entry, work
        work = ref()
        if work is not None:
            self.works[key] = (work, record)
        return work is None

    def pairs(self) -> list[Collective]:
        """Return the sends and receives that somebody may wait for."""
        entries = [*list(self.works.values()), *list(self.completed.values())]
        return [
            record for _, record in entries if record.op in POINT_TO_POINT and not record.done_ns
        ]

    def join(self, coalesced: int, work: Any) -> None:
        """Take `work` as that of a batch: its last collective keeps it, the others are dropped."""
        if self.device is not None:
            self.device.join(coalesced, work)
        if work is None:
            return
        with self._tables:
            batch = [
                (key, record)
                for key, (_, record) in list(self.works.items())
                if record.coalesced == coalesced
            ]
            for key, record in batch:
                if self.works.pop(key, None) is not None and record is not batch[-1][1]:
                    self.state.done(record.id, UNFOLLOWED)
                    self._add(record)
            if batch:
                self.works[id(work)] = (work, batch[-1][1])

    def tell_followers(self, record: Collective | None, outputs: Any) -> None:
        """Tell followers of a collective, if it is asynchronous and has a wait to be seen."""
        if record is None or not record.is_async:
            return
        if record.pending_ns or self.device is not None:
            for follow in self.followers:
                try:
                    follow(record, outputs)
                except Exception as error:
                    self._fail(follow.__qualname__, error)

    def take_outputs(self, storage: int) -> list[Collective]:
        """Take the collectives that write to a storage out of the tables, in order of issue."""
        with self._tables:
            flying = [
                key for key, (_, record) in list(self.works.items()) if storage in record.outputs
            ]
            entries = [self.works.pop(key, None) for key in flying]
        found = self.cpp_waits.take(lambda record: storage in record.outputs)
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
            if record.pending_ns:  # on the host
                record.done_ns = record.done_ns or (end_ns if finished else 0)
                self.state.done(record.id, record.done_ns or -end_ns)
            record.wait_ns, record.waited_ns, record.waits = start_ns, end_ns, 1
            record.is_estimated = estimated
            record.blocked_ns = end_ns - start_ns if record is records[-1] else 0
            self._add(record)

    def unfinished(self) -> list[Collective]:
        """Return the records not handed over yet; those of complete ones have their `done_ns`.

        For the writer's thread: it looks, and drops only what is old or too much. It holds no
        Work outside the lock, so that others can see which ones are not held.
        """
        kept: list[Collective] = []
        with self._tables:
            if self.works:
                self._give_up_oldest()
                self.poll_all()  # a Work holds tensors, and no other hook may ever come along
                kept = [self._look(*entry) for entry in list(self.works.values())]
            if self.completed:
                kept += [record for _, record in list(self.completed.values())]
        return [
            *self.blocking.values(),
            *list(self.enqueued.values()),
            *list(self.device_waits.values()),
            *kept,
            *self.cpp_waits.records(),
        ]

    def _look(self, work: Any, record: Collective) -> Collective:
        """Note whether a collective is complete."""
        if not record.done_ns and _is_completed(work):
            record.done_ns = clock()
            self.state.done(record.id, record.done_ns)
        return record

    def _give_up_oldest(self) -> None:
        """Hand over the oldest records in flight, complete or not, when there are too many."""
        excess = len(self.works) - IN_FLIGHT
        for key in list(itertools.islice(self.works, max(excess, 0))):
            entry = self.works.pop(key, None)
            if entry is not None:
                self.given_up += 1
                self.state.done(entry[1].id, UNFOLLOWED)
                self._add(entry[1])


def _is_completed(work: Any) -> bool:
    """Ask a Work; one that cannot answer is not asked again."""
    try:
        return bool(work.is_completed())
    except Exception as error:
        raise_if_of_signal_handler(error)
        return True
