"""What bypasses the dispatcher is one record: direct calls, and process groups in Python."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dsprof.hooks.base import Hook
from dsprof.hooks.wire.backends import BackendHook
from dsprof.hooks.wire.process_group import ProcessGroupHook
from dsprof.recording.recorder.recorder import Recorder
from tests.handed_over import collectives
from tests.hooks.conftest import COMPLETE, WORLD_SIZE
from tests.hooks.described import group_of

Install = Callable[..., Recorder]
both_ways = pytest.mark.parametrize("kind", [*COMPLETE, ProcessGroupHook])


class Handle(dist.Work):
    """A Work in Python, with a wait of its own that takes a while."""

    def wait(self, timeout: Any = None) -> bool:
        time.sleep(0.05)
        return True


class Library(dist.ProcessGroup):
    """A communication library in Python, alone in the world."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)

    def getBackendName(self) -> str:  # noqa: N802 - what torch calls it
        return "library"

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        return Handle()

    def alltoall_base(
        self, output: Any, given: Any, output_splits: Any, given_splits: Any, opts: Any = None
    ) -> dist.Work:
        return Handle()

    def gather_single(self, output: Any, given: Any, opts: Any = None) -> dist.Work:
        return Handle()

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        return self.inner.broadcast(tensors, opts)  # type: ignore[attr-defined]


def create(store: Any, rank: int, size: int, timeout: Any) -> Library:
    return Library(rank, size)


@pytest.fixture
def library(group: None) -> Any:
    """A group of the library beside the world of the fake backend."""
    if not hasattr(dist.Backend, "LIBRARY"):
        dist.Backend.register_backend("library", create, devices=["cpu"])
    made = dist.new_group(backend="library")
    made.inner = dist.group.WORLD
    return made


def seen(recorder: Recorder) -> list[tuple[str, int, int]]:
    return [(r.op, r.nbytes, r.seq) for r in collectives(recorder)]


@both_ways
def test_a_direct_call_is_counted_with_its_group(install: Install, kind: type[Hook]) -> None:
    recorder = install(kind, BackendHook)
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    dist.all_reduce(torch.zeros(4))
    backend.allreduce([torch.zeros(2)]).wait()
    dist.all_reduce(torch.zeros(4))
    assert seen(recorder) == [("all_reduce", 16, 1), ("all_reduce", 8, 2), ("all_reduce", 16, 3)]
    assert len({record.group for record in collectives(recorder)}) == 1
    assert recorder.in_flight.unmatched_waits == 0
    assert recorder.failures == {}


@both_ways
def test_a_direct_call_arms_the_recorder(install: Install, kind: type[Hook]) -> None:
    recorder = install(kind, BackendHook)
    recorder.recording = False
    dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([torch.zeros(2)]).wait()
    assert recorder.recording
    assert seen(recorder) == [("all_reduce", 8, 1)]


@both_ways
def test_a_library_in_python_is_recorded_and_timed(
    install: Install, kind: type[Hook], library: Any
) -> None:
    recorder = install(kind, BackendHook)
    dist.all_reduce(torch.zeros(4), group=library)
    work = dist.all_reduce(torch.zeros(2), group=library, async_op=True)
    work.wait()
    assert seen(recorder) == [("all_reduce", 16, 1), ("all_reduce", 8, 2)]
    assert [record.is_async for record in collectives(recorder)] == [False, True]
    assert all(record.blocked_ns >= 50e6 for record in collectives(recorder))
    assert {group_of(recorder, record).backend for record in collectives(recorder)} == {"library"}
    assert recorder.in_flight.unmatched_waits == 0
    assert recorder.failures == {}


@both_ways
def test_what_a_library_hands_on_is_recorded_once(
    install: Install, kind: type[Hook], library: Any
) -> None:
    recorder = install(kind, BackendHook)
    dist.broadcast(torch.zeros(4), 0, group=library)
    dist.broadcast(torch.zeros(4), 0)
    assert seen(recorder) == [("broadcast", 16, 1), ("broadcast", 16, 2)]
    assert recorder.in_flight.unmatched_waits == 0


@pytest.mark.parametrize("kind", COMPLETE)
def test_a_library_defined_later_is_seen(install: Install, kind: type) -> None:
    recorder = install(kind, BackendHook)

    class Later(Library):
        def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
            return Handle()

    Later(0, 1).allreduce([torch.zeros(4)]).wait()
    assert seen(recorder) == [("all_reduce", 16, 1)]


@pytest.mark.parametrize("kind", COMPLETE)
def test_a_work_that_nobody_waits_for_is_not_kept(
    install: Install, library: Any, kind: type
) -> None:
    recorder = install(kind, BackendHook)
    dist.all_reduce(torch.zeros(4), group=library, async_op=True)
    assert recorder.in_flight.works == {}
    assert seen(recorder) == [("all_reduce", 16, 1)]


def test_everything_is_put_back(group: None) -> None:
    before = [dict(vars(kind)) for kind in (dist.ProcessGroup, Library, Handle)]
    hook = BackendHook(Recorder(lambda: True))
    hook.recorder.arm()
    hook.install("torch.distributed")
    Library(0, 1).allreduce([torch.zeros(4)]).wait()
    assert vars(Library)["allreduce"] is not before[1]["allreduce"]
    assert vars(Handle)["wait"] is not before[2]["wait"]
    hook.uninstall()
    after = [dict(vars(kind)) for kind in (dist.ProcessGroup, Library, Handle)]
    assert all(a.keys() == b.keys() for a, b in zip(after, before, strict=True))
    assert all(a[k] is b[k] for a, b in zip(after, before, strict=True) for k in b)


@both_ways
def test_what_a_library_does_not_override_goes_to_torch(install: Install, kind: type[Hook]) -> None:
    """C++ looks for an override first: a patch of ours found there would call itself for ever."""
    recorder = install(kind, BackendHook)
    group = type("Plain", (dist.ProcessGroup,), {})(0, 1)
    with pytest.raises(RuntimeError, match="No backend"):
        group.barrier()
    with pytest.raises(RuntimeError, match="No backend"):
        group.alltoall_base(torch.zeros(2), torch.zeros(2), [], [])
    assert recorder.failures == {}


@both_ways
def test_an_override_may_call_what_it_overrides(install: Install, kind: type[Hook]) -> None:
    recorder = install(kind, BackendHook)

    class Outer(dist.ProcessGroup):
        def allreduce(self, tensors: Any, opts: Any = None) -> Any:
            return super().allreduce(tensors)

    with pytest.raises(RuntimeError, match="No backend"):
        Outer(0, 1).allreduce([torch.zeros(4)])
    assert recorder.failures == {}


@both_ways
def test_a_gather_into_one_tensor_is_counted_by_what_the_root_receives(
    install: Install, kind: type[Hook], library: Any
) -> None:
    recorder = install(kind, BackendHook)
    library.gather_single(torch.zeros(0), torch.zeros(4)).wait()
    assert seen(recorder) == [("gather_into_tensor", 16 * WORLD_SIZE, 1)]


@both_ways
def test_a_new_name_that_torch_maps_to_an_old_override_is_counted_once(
    install: Install, kind: type[Hook], library: Any
) -> None:
    recorder = install(kind, BackendHook)
    dist.all_to_all_single(torch.zeros(8), torch.zeros(8), group=library)
    assert seen(recorder) == [("all_to_all_single", 32, 1)]
    assert recorder.in_flight.unmatched_waits == 0
