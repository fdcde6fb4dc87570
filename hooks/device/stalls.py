"""Pairs of events around what may hold a stream, read back when the device has passed them.

Events come from a pool. They are queried only at step ends, by the watchdog also while nothing goes
on, and never waited for; a pair that is not passed after `MOST_STEP_ENDS` is given up and counted.
A pair is read back with the end of its step, so that one state of the clock places both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

from dsprof.hooks.device.clock import DeviceClock, Mark, elapsed_ns
from dsprof.hooks.device.device import Device, Event, Stream, StreamKey, key_of
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Collective, DeviceStep, Stall
from dsprof.trace.scope import clock

MOST_STEP_ENDS = 16
MOST_HELD = 20_000
"""Pairs of one stream that may wait to be read back; more are given up and counted."""

ALL_STREAMS = -1
"""In place of a stream's id: all streams of the device."""


@dataclass(slots=True, eq=False)
class Held:
    """Two marks on one stream, and what was between them."""

    kind: str
    collective: int
    step: int
    start: Mark
    end: Mark
    _: KW_ONLY
    awaited: int = ALL_STREAMS
    issue: Mark | None = None
    record: Collective | None = None  # of a collective that ends here
    round: int = 0

    @property
    def marks(self) -> tuple[Mark | None, ...]:
        """Its own marks; one without length lies on the end of another, which comes later."""
        return (self.issue,) if self.start is self.end else (self.start, self.end, self.issue)


class Stalls:
    """Makes marks, keeps pairs until they are passed, and turns them into records."""

    def __init__(self, device: Device, recorder: Recorder) -> None:
        self._device = device
        self._recorder = recorder
        self._pools: dict[int, list[Mark]] = {}  # of each device; events work only on their own
        self._held: dict[StreamKey, deque[Held]] = {}
        self._captures = 0
        self._round = 0
        self._steps: deque[tuple[int, Mark]] = deque()
        self._clocks: dict[int, DeviceClock] = {}
        self._passed_step = -1  # the newest one whose end was passed
        self._last_step: tuple[int, Mark] | None = None  # its end is the anchor of its device
        # When the host began to wait for a stream, and when it was done.
        self._synchronized: dict[StreamKey, tuple[int, int]] = {}

    def capturing(self, change: int) -> None:
        """A graph begins to be captured (1), or is captured (-1): its beginning may be unseen."""
        self._captures = max(0, self._captures + change)

    def is_capturing(self) -> bool:
        """Tell whether a graph is captured, here or in another thread of the process.

        To ask an event then would end the capture with an error.
        """
        return self._captures > 0 or self._device.is_capturing()

    def mark(self, stream: Stream) -> Mark:
        """Enqueue an event on `stream`."""
        key = key_of(stream)
        try:
            mark = self._pools[key[0]].pop()
        except LookupError:
            mark = Mark(self._device.timed_event())
        mark.key = key
        mark.at_ns = clock()
        self._device.record(mark.event, stream)
        return mark

    def give_back(self, *marks: Mark | None) -> None:
        """Put marks into the pool; recorded anew they mean something else."""
        for mark in marks:
            if mark is not None:
                self._pools.setdefault(mark.key[0], []).append(mark)

    def put(self, held: Held) -> None:
        """Keep a pair until the device has passed it."""
        queue = self._held.setdefault(held.end.key, deque())
        if len(queue) < MOST_HELD:
            held.round = self._round
            queue.append(held)
        else:
            self._give_up(held)

    def synchronized(self, key: StreamKey, start_ns: int, end_ns: int) -> None:
        """Note that all that was enqueued on a stream by `start_ns` is done."""
        self._synchronized[key] = start_ns, end_ns

    def mark_step(self, step: int, stream: Stream) -> None:
        """Enqueue the end of `step`; -1 is a moment that is no such end."""
        self._steps.append((step, self.mark(stream)))

    def settle(self, main: StreamKey, *, is_end: bool = False) -> None:
        """Record all that the device has passed by now; steps end on stream `main`.

        All of it ties the clocks before any of it is placed: a stall lies in its step to the
        nanosecond, however wide the bound of both still is. `is_end`: no step end will come.
        """
        self._round += 1
        steps = [*self._passed_steps()]
        passed = [
            held for queue in list(self._held.values()) for held in self._passed(queue, is_end)
        ]
        if not steps and not passed:
            return
        now = clock()
        anchor = self._advance(steps[-1][1], now) if steps else None
        for _, mark in steps[:-1]:
            if (tied := self._clocks.get(mark.key[0])) is not None:
                tied.learn(tied.since(mark), mark.at_ns, self._seen(mark, now))
        places = [self._learn(held, now) for held in passed]
        self._end_steps(steps)
        for held, place in zip(passed, places, strict=True):
            self._recorder.outbox.add(self._stall(held, place, main))
            self.give_back(*held.marks)
        self.give_back(anchor, *(mark for _, mark in steps[:-1]))

    def forget(self) -> None:
        """Drop all that is not passed yet: steps are counted anew."""
        for queue in self._held.values():
            while queue:
                self.give_back(*queue.popleft().marks)
        while self._steps:
            self.give_back(self._steps.popleft()[1])
        self._passed_step, self._last_step = -1, None

    def entered(self, is_passed: Callable[[Event], bool]) -> list[Collective]:
        """Return the collectives that streams have entered and not left.

        A stream that computes, or waits for one that does, is in none. For a thread beside the one
        that trains, while that does not go on.
        """
        found: list[Collective] = []
        for queue in list(self._held.values()):
            held = queue.copy()
            while held and is_passed(held[0].end.event):
                held.popleft()
            current = (one for one in held if one.end is held[0].end)  # several end in one wait
            found += [
                one.record
                for one in current
                if one.record is not None and has_come(one.record, one.start, one.issue, is_passed)
            ]
        return found

    def _passed_steps(self) -> Iterator[tuple[int, Mark]]:
        while self._steps and self._steps[0][1].event.query():
            step, mark = self._steps.popleft()
            self._passed_step = max(self._passed_step, step)
            yield step, mark

    def _passed(self, queue: deque[Held], is_end: bool) -> Iterator[Held]:
        """Take out pairs that were passed, as the end of their step was; a stream keeps order."""
        while queue:
            is_due = queue[0].step <= self._passed_step or is_end
            if is_due and queue[0].end.event.query():
                yield queue.popleft()
            elif self._round - queue[0].round > MOST_STEP_ENDS:
                self._give_up(queue.popleft())
            else:
                return

    def _give_up(self, held: Held) -> None:
        self._recorder.in_flight.lost_stalls += 1
        self.give_back(*held.marks)

    def _advance(self, newest: Mark, now: int) -> Mark | None:
        """Make the newest step end the anchor of its device; return the one before."""
        tied = self._clocks.get(newest.key[0])
        if tied is None:
            self._clocks[newest.key[0]] = DeviceClock(newest, self._seen(newest, now))
            return None
        return tied.advance(newest, self._seen(newest, now))

    def _learn(self, held: Held, now: int) -> tuple[int, int] | None:
        """Learn from both marks; return the times from the anchor to the start, and to the end."""
        start, end = held.start, held.end
        tied = self._clocks.get(start.key[0])
        if tied is None:
            return None
        start_ns = end_ns = tied.since(start)
        seen_ns = self._seen(end, now)
        if end is not start:
            end_ns += elapsed_ns(start, end)
            tied.learn(start_ns, start.at_ns, seen_ns)
        tied.learn(end_ns, end.at_ns, seen_ns)
        return start_ns, end_ns

    def _end_steps(self, steps: Sequence[tuple[int, Mark]]) -> None:
        for step, mark in steps:
            last, self._last_step = self._last_step, (step, mark)
            tied = self._clocks.get(mark.key[0])
            if tied is None or last is None or last[1].key[0] != mark.key[0]:
                continue
            if 0 <= last[0] == step - 1:
                start_ns, end_ns = (tied.at(tied.since(one)) for one in (last[1], mark))
                self._recorder.outbox.add(DeviceStep(step, start_ns, end_ns, tied.bound_ns))

    def _seen(self, mark: Mark, now: int) -> int:
        """Return by when the host knew that `mark` was passed."""
        for key in (mark.key, (mark.key[0], ALL_STREAMS)):
            wait = self._synchronized.get(key)
            if wait is not None and mark.at_ns < wait[0]:
                now = min(now, wait[1])
        return now

    def _stall(self, held: Held, place: tuple[int, int] | None, main: StreamKey) -> Stall:
        length_ns = elapsed_ns(held.start, held.end) if place is None else place[1] - place[0]
        stall = Stall(
            kind=held.kind,
            stream=held.start.key[1],
            awaited=held.awaited,
            collective=held.collective,
            step=held.step,
            duration_ns=max(length_ns, 0),
            is_side=held.start.key != main,
        )
        if place is not None:
            tied = self._clocks[held.start.key[0]]
            stall.start_ns = tied.at(place[0])
            stall.end_ns = stall.start_ns + stall.duration_ns
            stall.bound_ns = tied.bound_ns
            if held.issue is not None and held.issue.key[0] == held.start.key[0]:
                stall.issued_ns = stall.end_ns - elapsed_ns(held.issue, held.end)
        return stall


def has_come(
    record: Collective, start: Mark, issue: Mark | None, is_passed: Callable[[Event], bool]
) -> bool:
    """Say whether a device has come to a collective, on the stream that issued it and on `start`'s.

    `issue` None: it was not marked where it was issued.
    """
    is_issued = is_passed(issue.event) if issue is not None else start.key[1] == record.stream
    return is_issued and is_passed(start.event)
