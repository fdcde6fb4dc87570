"""A device with streams and events, as far as its hook needs one.

`TorchCuda` is the only implementation for real devices; ROCm has the same Python interface. Tests
bring another that keeps its own time.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any, Protocol

import torch

StreamKey = tuple[int, int]
"""Device index and stream id, which no two streams of a process share."""

_CUDA = "cu", "libcuda.so.1"
_PASSED, _NOT_READY = 0, 600  # of CUDA and of HIP

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

    def find_driver(self) -> None:
        """Find what `asks_apart` needs, in a thread that trains: it takes the loader's lock."""

    def asks_apart(self) -> Callable[[Event], bool]:
        """Return what tells whether an event was passed, for a thread that does nothing else.

        It lets other threads run Python, even if the driver does not answer, and disturbs no
        capture. It raises OSError if the device has failed.

        Raises:
            OSError: the driver cannot be asked so.
        """


class TorchCuda:
    """torch.cuda, on CUDA and on ROCm.

    Below its functions where they look for devices first: those take 5 us instead of a half.
    """

    def __init__(self) -> None:
        self._streams: dict[StreamKey, Stream] = {}
        self._driver: _Driver | None = None

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

    def find_driver(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self._driver = _Driver()

    def asks_apart(self) -> Callable[[Event], bool]:
        if self._driver is None:
            raise OSError("its driver was not found")
        self._driver.relax()
        return self._driver.is_passed


class _Driver:
    """The driver, called by ctypes, which releases the interpreter lock: torch's query holds it."""

    def __init__(self) -> None:
        prefix, library = ("hip", _loaded("libamdhip64.so")) if torch.version.hip else _CUDA
        driver = ctypes.CDLL(library)
        self._name = f"{prefix}EventQuery"
        self._query = driver[self._name]
        self._exchange_mode = driver[f"{prefix}ThreadExchangeStreamCaptureMode"]

    def relax(self) -> None:
        """Let this thread ask while another captures: a query would else end that with an error."""
        relaxed = ctypes.c_int(2)
        self._exchange_mode(ctypes.byref(relaxed))

    def is_passed(self, event: Any) -> bool:
        status: int = self._query(ctypes.c_void_p(event.cuda_event))
        if status not in (_PASSED, _NOT_READY):
            raise OSError(f"{self._name} returns {status}")
        return status == _PASSED


def _loaded(name: str) -> str:
    """Return the path of a library of this process: torch may bring one of its own."""
    with open("/proc/self/maps") as maps:
        paths = (line.split()[-1] for line in maps if name in line)
        return next(paths, name)


def key_of(stream: Stream) -> StreamKey:
    """Return what tells a stream from all others."""
    return stream.device_index, stream.stream_id
