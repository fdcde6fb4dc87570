"""A process group of 8 ranks in one process: torch's fake backend communicates nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from dsprof.hooks import base
from dsprof.hooks.base import Hook
from dsprof.hooks.patching import PatchSet, forget_imports
from dsprof.hooks.wire.dispatcher import DispatcherHook
from dsprof.hooks.wire.functional import FunctionalHook
from dsprof.hooks.wire.interception import CompleteHook
from dsprof.hooks.wire.native import NativeDispatcherHook, NativeFunctionalHook, NativeHook
from dsprof.hooks.wire.process_group import ProcessGroupHook
from dsprof.hooks.wire.work import WorkHook
from dsprof.recording.recorder import hot_state, in_flight, progress
from dsprof.recording.recorder.recorder import Recorder

WORLD_SIZE = 8

IN_DISPATCHER: tuple[type[Hook], ...] = (DispatcherHook, NativeDispatcherHook)
COMPLETE: tuple[type[Hook], ...] = (CompleteHook, NativeHook)
WITH_WAITS: tuple[tuple[type[Hook], ...], ...] = (
    (CompleteHook, FunctionalHook),
    (NativeHook, NativeFunctionalHook),
)
ALL_WAYS = (*IN_DISPATCHER, *COMPLETE, ProcessGroupHook)
"""Hooks of the wire; those called native need `dsprof build`, which make runs before the tests."""


def has_kernel(operation: str) -> bool:
    """Tell whether somebody's kernel is at the key of the hooks."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operation, "BackendSelect"))


@pytest.fixture(params=["C", "Python"])
def in_c_and_in_python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with the part of hooks that is in C, which make compiles, and without."""
    assert hot_state.compiled is not None
    if request.param == "Python":
        for module in (base, progress, in_flight):
            monkeypatch.setattr(module, "compiled", None)


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD_SIZE)
    yield
    dist.destroy_process_group()


@pytest.fixture
def install(group: None) -> Iterator[Callable[..., Recorder]]:
    """Install hooks (and the one for waits) around a recorder that is on."""
    patches, hooks = PatchSet(), []

    def install(*kinds: type[Hook]) -> Recorder:
        recorder = Recorder(lambda: True)
        assert recorder.arm()
        for kind in (*kinds, WorkHook):
            hook = kind(recorder)
            hooks.append(hook)
            for module in hook.modules():
                hook.install(module)
                patches.apply(hook.patches(module))
        return recorder

    yield install
    patches.revert()
    for hook in hooks:
        hook.uninstall()
    forget_imports()
