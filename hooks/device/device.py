"""A device with streams and events, as far as its hook needs one.

`TorchCuda` is the only implementation for real devices; ROCm has the same Python interface. Tests
bring another that keeps its own time.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

StreamKey = tuple[int, int]
"""Device index and stream id, which no two streams of a process share."""

_STREAMS = 1024
"""Streams that are remembered; torch has 65 on a device, libraries may bring theirs."""


class Event(Protocol):
    """A moment that a stream passes; recorded anew it is another moment."""

    def query(self) -> bool:
        """Tell whether the stream has passed it; never blocks."""

    def elapsed_time(self, end: Any) -> float:
        """Return the ms from this event to `end`, both passed; negative if `end` came first."""


class Stream(Protocol):
    """A queue of a device, which does one thing after the other."""

    device_index: int
    stream_id: int


class Device(Protocol):
    """The hook's interface to a device."""

    def is_built(self) -> bool:
        """Tell whether this torch can use such a device at all."""

    def in_use(self) -> bool:
        """Tell whether this process uses the device; asking does not begin to."""

    def is_capturing(self) -> bool:
        """Tell whether what this thread enqueues goes into a graph instead of running."""

    def current_stream(self) -> Stream:
        """Return the stream that this thread enqueues on."""

    def timed_event(self) -> Event:
        """Make an event that can be timed."""

    def record(self, event: Event, stream: Stream) -> None:
        """Enqueue `event` on `stream`; does not wait."""


class TorchCuda:
    """torch.cuda, on CUDA and on ROCm.

    Below its functions where they look for devices first: those take 5 us instead of a half.
    """

    def __init__(self) -> None:
        self._streams: dict[StreamKey, Stream] = {}

    def is_built(self) -> bool:
        return bool(torch.backends.cuda.is_built())

    def in_use(self) -> bool:
        return bool(torch.cuda.is_initialized())

    def is_capturing(self) -> bool:
        return bool(torch._C._cuda_isCurrentStreamCapturing())

    def current_stream(self) -> Stream:
        number, device, kind = torch._C._cuda_getCurrentStream(torch._C._cuda_getDevice())
        stream = self._streams.get((device, number))
        if stream is None:
            if len(self._streams) >= _STREAMS:
                self._streams.clear()
            stream = torch.cuda.Stream(stream_id=number, device_index=device, device_type=kind)
            self._streams[device, number] = stream
        return stream

    def timed_event(self) -> Event:
        event: Event = torch.cuda.Event(enable_timing=True)
        return event

    def record(self, event: Event, stream: Stream) -> None:
        # Below the method of class Event, which is ours while the hook is in.
        torch._C._CudaEventBase.record(event, stream)


def key_of(stream: Stream) -> StreamKey:
    """Return what tells a stream from all others."""
    return stream.device_index, stream.stream_id
