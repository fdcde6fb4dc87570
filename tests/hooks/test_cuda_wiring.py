"""The hooks of the wire and of waits call the device's hook, where there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from dsprof.hooks.device.cuda import CudaHook
from dsprof.hooks.patching import PatchSet
from dsprof.hooks.wire import groups
from dsprof.hooks.wire.process_group import ProcessGroupHook
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import Collective
from tests.factories.fake_cuda import FakeCuda, Host
from tests.handed_over import handed_over
from tests.hooks.conftest import COMPLETE, WITH_WAITS

Install = Callable[..., Recorder]
KINDS = [*COMPLETE, ProcessGroupHook]


class Watch:
    """Notes what it is called for."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.works: list[Any] = []

    def begin(self) -> None:
        self.calls.append("begin")

    def issued(self, record: Collective, work: Any) -> None:
        self.calls.append(record.op)
        self.works.append(work)

    def open(self) -> str:
        self.calls.append("open")
        return "opened"

    def close(self, opened: str, records: list[Collective]) -> None:
        self.calls += [opened, *(record.op for record in records)]

    def holds(self, work: Any) -> bool:
        return any(work is one for one in self.works)

    def wait(self, work: Any, call: Callable[[], Any]) -> Any:
        self.calls.append("wait")
        return call()


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_group_goes_to_the_device_with_its_work(install, kind, monkeypatch) -> None:
    monkeypatch.setattr(groups, "_HOST_BACKENDS", ())
    recorder, watch = install(kind), Watch()
    recorder.in_flight.device, recorder.in_flight.on_device = watch, watch.issued
    work = dist.barrier(async_op=True)
    assert work is watch.works[0]
    work.wait()
    assert watch.calls == ["begin", "barrier", "wait"]
    assert not handed_over(recorder)
    assert recorder.in_flight.unmatched_waits == 0


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_on_the_host_stay_on_the_host_clock(install: Install, kind: type) -> None:
    recorder, watch = install(kind), Watch()
    recorder.in_flight.device, recorder.in_flight.on_device = watch, watch.issued
    dist.all_reduce(torch.zeros(4))
    assert watch.calls == ["begin"]
    (record,) = handed_over(recorder)
    assert isinstance(record, Collective)
    assert record.waits == 1


@pytest.mark.parametrize("kinds", WITH_WAITS)
def test_a_functional_wait_goes_to_the_device(install: Install, kinds: tuple[type, ...]) -> None:
    recorder, watch = install(*kinds), Watch()
    recorder.in_flight.device = watch
    output = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
    torch.ops._c10d_functional.wait_tensor(output.elem)
    assert watch.calls == ["begin", "open", "opened", "all_reduce"]


@pytest.mark.parametrize("kind", COMPLETE)
def test_without_a_hook_collectives_on_a_device_are_recorded_all_the_same(
    install: Install, monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    monkeypatch.setattr(groups, "_HOST_BACKENDS", ())
    recorder = install(kind)
    dist.barrier()
    assert [record.op for record in handed_over(recorder)] == ["barrier"]


def test_a_torch_without_cuda_is_left_as_it_is() -> None:
    if torch.backends.cuda.is_built():
        pytest.skip("this torch has CUDA")
    recorder = Recorder(lambda: True)
    hook = CudaHook(recorder)
    hook.install("torch.distributed")
    assert not recorder.progress.step_listeners
    assert [patch for module in hook.modules() for patch in hook.patches(module)] == []
    hook.uninstall()


def test_every_attribute_is_put_back() -> None:
    hook, patches = CudaHook(Recorder(lambda: True), FakeCuda(Host())), PatchSet()
    owners = [(t, t.resolve()) for t in hook.targets if t.is_there()]
    assert {target.owner for target, _ in owners} >= {"Event", "Stream", "CUDAGraph", ""}
    before = [vars(owner).get(target.name) for target, owner in owners]
    for module in hook.modules():
        patches.apply(hook.patches(module))
    assert all(
        vars(owner)[target.name] is not raw
        for (target, owner), raw in zip(owners, before, strict=True)
    )
    assert patches.revert() == []
    after = [vars(owner).get(target.name) for target, owner in owners]
    assert all(one is other for one, other in zip(before, after, strict=True))
