"""One rank with a device that keeps its own time, and the hook between them."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from dsprof.hooks.device import cuda, stalls, stream_waits
from dsprof.hooks.device.cuda import CudaHook
from dsprof.hooks.patching import Patch
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Collective, Stall
from tests.factories import fake_cuda
from tests.factories.fake_cuda import Event, FakeCuda, Host, Nccl, Stream
from tests.handed_over import handed_over


class Machine:
    """One rank: a host, a device, and the hook between them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = Host()
        for module in (cuda, stalls, stream_waits):
            monkeypatch.setattr(module, "clock", self.host.clock)
        self.recorder = Recorder(lambda: True)
        assert self.recorder.arm()
        self.device = FakeCuda(self.host)
        self.hook = CudaHook(self.recorder, self.device)
        self.hook.install("torch.distributed")
        self.graph = _Graph(self.host)
        owners = {"Event": Event, "Stream": Stream, "CUDAGraph": _Graph, "": _Module(self.host)}
        self.patches = [
            Patch(owners[t.owner], t.name, functools.partial(self.hook.wrap, t))
            for t in self.hook.targets
            if t.owner in owners
        ]
        for patch in self.patches:
            patch.apply()
        self.module = owners[""]
        self.nccl = Nccl(self.host, self.hook)
        self.compute = self.host.default
        self.side = Stream(self.host, 7)

    def warm(self) -> None:
        """Begin: the first collective is not timed, and its step not either."""
        self.nccl.all_reduce(1)
        self.drain()
        self.nccl.step(0)
        self.host.spend(1)

    def drain(self) -> None:
        """Let the device come to an end, unseen by the hook."""
        streams = (self.compute, self.side, self.nccl.own)
        self.host.now = max(self.host.now, *(stream.free for stream in streams)) + self.host.latency

    def read_back(self) -> list[Stall]:
        """Return the stalls after two more step ends: the first must have been passed."""
        for _ in range(2):
            self.drain()
            self.nccl.step(self.recorder.progress.scope.step)
        return self.stalls()

    def stalls(self) -> list[Stall]:
        return handed_over(self.recorder, Stall)

    def collectives(self) -> list[Collective]:
        return handed_over(self.recorder, Collective)


class _Module:
    """torch.cuda, as far as it is patched."""

    def __init__(self, host: Host) -> None:
        def synchronize(device: object = None) -> None:
            for stream in self.streams:
                stream.synchronize()

        self.synchronize = synchronize
        self.streams: list[Stream] = []
        self.host = host


class _Graph:
    """torch.cuda.CUDAGraph."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def capture_begin(self) -> None:
        self.host.capturing = True

    def capture_end(self) -> None:
        self.host.capturing = False


def machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Yield a machine, and take the hook out of its classes again."""
    made = Machine(monkeypatch)
    yield made
    for patch in made.patches:
        assert patch.revert()
    assert fake_cuda.Event.record is fake_cuda._record
