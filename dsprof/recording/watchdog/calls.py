"""The calls in which a rank may wait: by its tables, its threads and the driver of its device.

It takes no lock and asks no Work: the writer's thread has just asked those. The driver is asked
only once it is quiet: the host does not wait for each of the calls of a device.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dsprof.recording.group_store import within
from dsprof.recording.recorder.in_flight import DeviceWatch
from dsprof.recording.recorder.recorder import Recorder
from dsprof.recording.watchdog.look import waiting_threads
from dsprof.trace.collectives import POINT_TO_POINT
from dsprof.trace.dumps.state_file import UNFOLLOWED
from dsprof.trace.schema import Collective, Note

_MOST_CALLS = 1000


class Calls:
    """Finds them for the watchdog of one rank, and lets the live state show them."""

    def __init__(self, recorder: Recorder, fail: Callable[[BaseException], None]) -> None:
        self._recorder, self._tables, self._fail = recorder, recorder.in_flight, fail
        self._can_ask = True  # the driver; False also while it does not answer
        self._held_since: dict[int, tuple[Collective, int]] = {}  # calls that the device is in
        self._shown: list[Collective] = []  # those that the live state shows in flight

    def in_flight(self) -> list[Collective]:
        """Return the calls of which no end is known; sends and receives are `awaited_pairs`."""
        tables = self._tables
        works = list(tables.works.values())[:_MOST_CALLS]
        return [
            *list(tables.blocking.values()),
            *list(tables.enqueued.values())[:_MOST_CALLS],
            *self.device_waits(),
            *(one for _, one in works if not one.done_ns and one.op not in POINT_TO_POINT),
        ]

    def note_held(self, now_ns: int, *, is_quiet: bool) -> None:
        """Note in which calls the device is, and since when that was seen."""
        found, before = self.ask_device() if is_quiet else [], self._held_since
        self._held_since = {one.id: before.get(one.id, (one, now_ns)) for one in found}

    def ask_device(self) -> list[Collective]:
        """Return in which calls the device is; [] if that is unknown."""
        device = self._tables.device
        if device is None or not self._can_ask:
            return []
        self._can_ask = False  # until it has answered: it may wait for a lock of its own
        return within(partial(self._answer_of, device), self._fail) or []

    def _answer_of(self, device: DeviceWatch) -> list[Collective]:
        try:
            found = device.entered()
        except OSError as error:
            self._recorder.outbox.define(Note(f"the device of this rank cannot be asked: {error}"))
            return []
        except Exception as error:  # noqa: BLE001 - as if there were none
            self._fail(error)
            return []
        self._can_ask = True
        return found

    def held_up(self, now_ns: int, threshold_ns: int) -> list[Collective]:
        """Return the calls in which the device has been seen for long."""
        found = self._held_since.values()
        return [one for one, since_ns in found if now_ns - since_ns >= threshold_ns // 2]

    def awaited_pairs(self) -> list[Collective]:
        """Return the sends and receives of threads that wait; which of them for, is unknown."""
        pairs = self._tables.pairs()
        waiting = waiting_threads() if pairs else set()
        return [record for record in pairs if record.thread in waiting][-_MOST_CALLS:]

    def device_waits(self) -> list[Collective]:
        """Return the calls for which threads wait on the device."""
        return list(self._tables.device_waits.values())

    def show_pairs(self, *, is_still: bool) -> None:
        """Let the live state show what threads wait for: an inquiry may come too late for it."""
        if not is_still:
            if self._shown:
                self.show(self.device_waits())
                self._shown = []
        elif not self._shown and (pairs := self.awaited_pairs()):
            self.show([*self.device_waits(), *pairs])

    def show(self, calls: list[Collective]) -> None:
        """Let the live state show these calls in flight, and no others of the device."""
        numbers, waits = {record.id for record in calls}, self.device_waits()
        for record in (*self._shown, *waits):
            if record.id not in numbers:
                self._tables.state.done(record.id, record.done_ns or UNFOLLOWED)
        for record in calls:
            self._tables.state.done(record.id, 0)
        for record in (*calls, *waits):
            if record.waited_ns:  # it has ended meanwhile
                self._tables.state.done(record.id, record.done_ns or UNFOLLOWED)
        self._shown = calls
