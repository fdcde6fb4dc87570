"""Which hooks there are. Importing this imports torch."""

from __future__ import annotations

from dsprof.config import Config
from dsprof.hooks.base import Hook
from dsprof.hooks.deepspeed.comm import DeepSpeedCommHook
from dsprof.hooks.deepspeed.copies import DeepSpeedCopiesHook
from dsprof.hooks.deepspeed.engine import DeepSpeedEngineHook
from dsprof.hooks.deepspeed.fetch import DeepSpeedFetchHook
from dsprof.hooks.deepspeed.sequence import DeepSpeedSequenceHook
from dsprof.hooks.deepspeed.zero import DeepSpeedZeroHook
from dsprof.hooks.device.cuda import CudaHook
from dsprof.hooks.device.memory import DeviceMemoryHook
from dsprof.hooks.torch.ddp import DDPHook
from dsprof.hooks.torch.ddp_wait import DdpWaitHook
from dsprof.hooks.torch.dtensor import DTensorHook
from dsprof.hooks.torch.fsdp import FSDPHook
from dsprof.hooks.torch.pipelining import PipeliningHook
from dsprof.hooks.torch.steps import TrainingLoopHook
from dsprof.hooks.unseen import UnseenHook
from dsprof.hooks.wire.backends import BackendHook
from dsprof.hooks.wire.c10d import ProcessGroupHook
from dsprof.hooks.wire.coalescing import CoalescingHook
from dsprof.hooks.wire.functional import FunctionalHook
from dsprof.hooks.wire.interception import AutomaticHook, CompleteHook
from dsprof.hooks.wire.native import (
    NativeAutomaticHook,
    NativeFunctionalHook,
    NativeHook,
    has_kernels,
)
from dsprof.hooks.wire.work import WorkHook
from dsprof.hooks.wire.world import WorldHook
from dsprof.recording.recorder import Recorder

HOOKS: tuple[type[Hook], ...] = (
    WorkHook,
    WorldHook,
    BackendHook,
    CoalescingHook,
    FunctionalHook,
    DdpWaitHook,
    DeepSpeedCommHook,
    DeepSpeedEngineHook,
    DeepSpeedZeroHook,
    DeepSpeedFetchHook,
    DeepSpeedCopiesHook,
    DeepSpeedSequenceHook,
    DDPHook,
    FSDPHook,
    DTensorHook,
    PipeliningHook,
    TrainingLoopHook,
    DeviceMemoryHook,
    CudaHook,
    UnseenHook,
)

WIRE_HOOKS: dict[str, type[Hook]] = {
    "auto": AutomaticHook,
    "dispatcher": CompleteHook,
    "native": CompleteHook,
    "process_group": ProcessGroupHook,
}

_IN_CPP: dict[type[Hook], type[Hook]] = {
    AutomaticHook: NativeAutomaticHook,
    CompleteHook: NativeHook,
    FunctionalHook: NativeFunctionalHook,
}
"""What takes the place of others where kernels in C++ are used."""

FALLBACKS: dict[type[Hook], type[Hook]] = {
    CompleteHook: ProcessGroupHook,
    NativeHook: ProcessGroupHook,
}
"""What to install where the first cannot be: another tool may hold the dispatcher's slot."""


_BUILT_IN = frozenset(hook.name for hook in (*HOOKS, *WIRE_HOOKS.values(), *_IN_CPP.values()))


def hooks_for(interception: str, *, in_cpp: bool) -> tuple[type[Hook], ...]:
    """Return which hooks there are, that of the wire first."""
    instead = _IN_CPP if in_cpp else {}
    return tuple(instead.get(hook, hook) for hook in (WIRE_HOOKS[interception], *HOOKS))


def create_hooks(config: Config, recorder: Recorder) -> list[Hook]:
    """Return one of each hook for this configuration; those that cannot be made are off."""
    try:
        in_cpp = has_kernels(config.interception)
    except Exception as error:
        recorder.fail("native", error)
        in_cpp = False
    hooks: list[Hook] = []
    for kind in hooks_for(config.interception, in_cpp=in_cpp):
        try:
            hooks.append(kind(recorder))
        except Exception as error:
            recorder.fail(kind.name, error)
    if config.hooks:  # without any, what finds plugins is not even imported
        from dsprof.hooks.plugin_hooks import plugin_hooks

        hooks += plugin_hooks(config.hooks, _BUILT_IN, recorder)
    return hooks
