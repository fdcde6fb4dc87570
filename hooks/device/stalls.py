"""Pairs of events around what may hold a stream, read back when the device has passed them.

Events come from a pool. They are queried only at step ends, and never waited for; a pair that is
not passed after `MOST_STEP_ENDS` is given up and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from dsprof.hooks.device.clock import DeviceClock, Mark, elapsed_ns
from dsprof.hooks.device.device import Device, Stream, StreamKey, key_of
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import DeviceStep, Stall
from dsprof.trace.scope import clock

MOST_STEP_ENDS = 16
MOST_HELD = 20_000
"""Pairs of one stream that may wait to be read back; more are given up and counted."""

ALL_STREAMS = -1
"""In place of a stream's id: all streams of the device."""


class Held:
    """Two marks on one stream, and what was between them."""

    __slots__ = ("awaited", "collective", "end", "issue", "kind", "round", "start", "step")

    @property
    def marks(self) -> tuple[Mark | None, ...]:
        """Its own marks; one without length lies on the end of another, which comes later."""
        return (self.issue,) if self.start is self.end else (self.start, self.end, self.issue)

    def __init__(
        self,
        kind: str,
        collective: int,
        step: int,
        start: Mark,
        end: Mark,
        *,
        awaited: int = ALL_STREAMS,
        issue: Mark | None = None,
    ) -> None:
        self.kind = kind
        self.collective = collective
        self.step = step
        self.start = start
        self.end = end
        self.awaited = awaited
        self.issue = issue
        self.round = 0


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
        self._last_step: tuple[int, int] | None = None  # the step passed last, and when
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

    def settle(self, main: StreamKey) -> None:
        """Record all that the device has passed by now; steps end on stream `main`."""
        self._round += 1
        steps = list(self._passed_steps())
        passed = [held for queue in list(self._held.values()) for held in self._passed(queue)]
        now = clock()
        for step, mark in steps:
            self._end_step(step, mark, now)
        places = [self._learn(held, now) for held in passed]
        for held, place in zip(passed, places, strict=True):
            self._recorder.outbox.add(self._stall(held, place, main))
            self.give_back(*held.marks)

    def _passed_steps(self) -> Iterator[tuple[int, Mark]]:
        while self._steps and self._steps[0][1].event.query():
            yield self._steps.popleft()

    def _passed(self, queue: deque[Held]) -> Iterator[Held]:
        """Take pairs out that were passed: a stream passes them in order."""
        while queue:
            if queue[0].end.event.query():
                yield queue.popleft()
            elif self._round - queue[0].round > MOST_STEP_ENDS:
                self._give_up(queue.popleft())
            else:
                return

    def _give_up(self, held: Held) -> None:
        self._recorder.in_flight.lost_stalls += 1
        self.give_back(*held.marks)

    def _end_step(self, step: int, mark: Mark, now: int) -> None:
        device = mark.key[0]
        tied = self._clocks.get(device)
        seen_ns = self._seen(mark, now)
        if tied is None:
            tied = self._clocks[device] = DeviceClock(mark, seen_ns)
        else:
            self.give_back(tied.advance(mark, seen_ns))
        end_ns = tied.at(0)
        if self._last_step is not None and self._last_step[0] == step - 1:
            start_ns = self._last_step[1]
            self._recorder.outbox.add(DeviceStep(step, start_ns, end_ns, tied.bound_ns))
        self._last_step = (step, end_ns) if step >= 0 else None

    def _learn(self, held: Held, now: int) -> int | None:
        """Tie the clock tighter by both marks; return the time from the anchor to the start."""
        tied = self._clocks.get(held.start.key[0])
        if tied is None:
            return None
        since_ns = tied.since(held.start)
        tied.learn(since_ns, held.start.at_ns, self._seen(held.start, now))
        end_ns = since_ns + elapsed_ns(held.start, held.end)
        tied.learn(end_ns, held.end.at_ns, self._seen(held.end, now))
        return since_ns

    def _seen(self, mark: Mark, now: int) -> int:
        """Return by when the host knew that `mark` was passed."""
        keys = (mark.key, (mark.key[0], ALL_STREAMS))
        waits = map(self._synchronized.get, keys)
        return min([now, *(wait[1] for wait in waits if wait and mark.at_ns < wait[0])])

    def _stall(self, held: Held, since_ns: int | None, main: StreamKey) -> Stall:
        stall = Stall(
            kind=held.kind,
            stream=held.start.key[1],
            awaited=held.awaited,
            collective=held.collective,
            step=held.step,
            duration_ns=max(elapsed_ns(held.start, held.end), 0),
            is_side=held.start.key != main,
        )
        if since_ns is not None:
            tied = self._clocks[held.start.key[0]]
            stall.start_ns = tied.at(since_ns)
            stall.end_ns = stall.start_ns + stall.duration_ns
            stall.bound_ns = tied.bound_ns
            if held.issue is not None and held.issue.key[0] == held.start.key[0]:
                stall.issued_ns = stall.end_ns - elapsed_ns(held.issue, held.end)
        return stall
