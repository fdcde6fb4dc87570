"""Streams that wait for streams, and a host that waits for them.

A wait is timed where it is for a collective that the waiting stream has not waited for yet: between
two events on the waiting stream. For the host that is the current stream: how long that had nothing
to do while the host was waiting for another one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from dsprof.hooks.base import After, Before, Hook, Target, hide_from_dynamo
from dsprof.hooks.device.clock import Mark
from dsprof.hooks.device.device import Device, Stream, StreamKey, key_of
from dsprof.hooks.device.stalls import ALL_STREAMS, Held, Stalls
from dsprof.hooks.device.streams import Streams, Tail
from dsprof.trace.scope import clock

_STREAMS = "torch.cuda.streams"
_GRAPHS = "torch.cuda.graphs"
_HOST_WAIT = "lets the host wait for a stream"

TARGETS = (
    Target(_STREAMS, "Event", "record", "says which stream an event is of"),
    Target(_STREAMS, "Event", "wait", "lets a stream wait; Stream.wait_stream ends here, too"),
    Target(_STREAMS, "Event", "synchronize", _HOST_WAIT),
    Target(_STREAMS, "Stream", "synchronize", _HOST_WAIT),
    Target("torch.cuda", "", "synchronize", "lets the host wait for the device"),
    Target(_GRAPHS, "CUDAGraph", "capture_begin", "from here on no event may be asked"),
    Target(_GRAPHS, "CUDAGraph", "capture_end", "events may be asked again"),
)


@dataclass(slots=True, eq=False)
class _Wait:
    """A stream that waits for what another was given."""

    tail: Tail
    stream: Stream
    start: Mark
    step: int


@dataclass(slots=True, eq=False)
class _HostWait:
    """The host waits for what stream `key` was given by `enqueued_ns`."""

    wait: _Wait | None
    key: StreamKey
    enqueued_ns: int


class StreamWaits:
    """Wraps `TARGETS` on behalf of a hook, once its recorder has a device."""

    def __init__(self, hook: Hook, device: Device, stalls: Stalls, streams: Streams) -> None:
        self._hook = hook
        self._device = device
        self._stalls = stalls
        self._streams = streams

    def wrap(self, target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what replaces the `original` of one of `TARGETS`."""
        if target.owner == "CUDAGraph":
            return self._capture(original, begins=target.name == "capture_begin")
        if target.name == "record":
            return self._recording(original)
        wrappers: dict[tuple[str, str], tuple[Before, After]] = {
            ("Event", "wait"): (self._stream_waits, self._stream_waited),
            ("Event", "synchronize"): (self._event_synchronize, self._host_waited),
            ("Stream", "synchronize"): (self._stream_synchronize, self._host_waited),
            ("", "synchronize"): (self._device_synchronize, self._host_waited),
        }
        return self._hook.around(original, *wrappers[target.owner, target.name])

    def _capture(self, original: Callable[..., Any], begins: bool) -> Callable[..., Any]:
        stalls = self._stalls

        @functools.wraps(original)
        def capture(*args: Any, **kwargs: Any) -> Any:
            if begins:
                stalls.capturing(1)
            try:
                result = original(*args, **kwargs)
            except BaseException:
                stalls.capturing(-1)
                raise
            if not begins:
                stalls.capturing(-1)
            return result

        return capture

    def _is_off(self) -> bool:
        return self._hook.recorder.in_flight.device is None or self._stalls.is_capturing()

    def _event(self, event: Any) -> tuple[Tail, int] | None:
        # Looked up first: most events are of no collective, and `_is_off` asks the device.
        found = self._streams.before(event)
        return None if found is None or self._is_off() else found

    # -- a stream waits for an event ----------------------------------------------------------

    def _recording(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap by hand what a step of ZeRO-3 calls four times for each collective."""
        hook, in_flight, hot = self._hook, self._hook.recorder.in_flight, self._hook.recorder.hot
        is_compiling, recorded = torch.compiler.is_dynamo_compiling, self._recorded

        @functools.wraps(original)
        def record(event: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(event, *args, **kwargs)
            if in_flight.device is not None and hot.recording and not is_compiling():
                try:
                    recorded(event, *args, **kwargs)
                except Exception as error:
                    hook.fail(error)
            return result

        hide_from_dynamo(record)
        hide_from_dynamo(StreamWaits._recorded, and_calls=True)
        return record

    def _recorded(self, event: Any, stream: Stream | None = None) -> None:
        if not self._hook.broken:
            key = key_of(self._device.current_stream() if stream is None else stream)
            self._streams.record(event, key, clock())

    def _stream_waits(self, event: Any, stream: Stream | None = None) -> _Wait | None:
        found = self._event(event)
        if found is None:
            return None
        return self._begin(found[0], self._device.current_stream() if stream is None else stream)

    def _stream_waited(self, wait: _Wait | None) -> None:
        if wait is not None:
            self._end("event", wait, wait.tail.key[1])
            # Whoever waits for this stream waits for that collective, too.
            self._streams.give(wait.start.key, wait.tail.collective, wait.tail.origin)

    # -- the host waits -----------------------------------------------------------------------

    def _event_synchronize(self, event: Any) -> _HostWait | None:
        found = self._event(event)
        if found is None:
            return None
        tail, recorded_ns = found
        return self._host_waits(tail, tail.key, recorded_ns)

    def _stream_synchronize(self, stream: Stream) -> _HostWait | None:
        if self._is_off():
            return None
        key = key_of(stream)
        return self._host_waits(self._streams.tail(key), key, clock())

    def _device_synchronize(self, device: Any = None) -> _HostWait | None:
        # Another device than the current one is not worth finding out about.
        current = None if self._is_off() else key_of(self._device.current_stream())
        if current is None or device not in (None, current[0]):
            return None
        newest = self._streams.newest_but(current)
        return self._host_waits(newest, (current[0], ALL_STREAMS), clock())

    def _host_waits(self, tail: Tail | None, key: StreamKey, enqueued_ns: int) -> _HostWait:
        wait = None if tail is None else self._begin(tail, self._device.current_stream())
        return _HostWait(wait, key, enqueued_ns)

    def _host_waited(self, host: _HostWait | None) -> None:
        if host is None:
            return
        self._stalls.synchronized(host.key, host.enqueued_ns, clock())
        if host.wait is not None:
            self._end("synchronize", host.wait, host.key[1])

    # -- both ---------------------------------------------------------------------------------

    def _begin(self, tail: Tail, stream: Stream) -> _Wait | None:
        if not self._streams.wait(key_of(stream), tail):
            return None
        return _Wait(
            tail, stream, self._stalls.mark(stream), self._hook.recorder.progress.scope.step
        )

    def _end(self, kind: str, wait: _Wait, awaited: int) -> None:
        end = self._stalls.mark(wait.stream)
        held = Held(kind, wait.tail.collective, wait.step, wait.start, end, awaited=awaited)
        self._stalls.put(held)
