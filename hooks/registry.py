"""Which hooks there are. Importing this imports torch."""

from __future__ import annotations

from dsprof.config import Config
from dsprof.hooks.backends import BackendHook
from dsprof.hooks.base import Hook
from dsprof.hooks.c10d import ProcessGroupHook
from dsprof.hooks.coalescing import CoalescingHook
from dsprof.hooks.cuda import CudaHook
from dsprof.hooks.ddp import DDPHook
from dsprof.hooks.ddp_wait import DdpWaitHook
from dsprof.hooks.deepspeed_comm import DeepSpeedCommHook
from dsprof.hooks.deepspeed_copies import DeepSpeedCopiesHook
from dsprof.hooks.deepspeed_engine import DeepSpeedEngineHook
from dsprof.hooks.deepspeed_fetch import DeepSpeedFetchHook
from dsprof.hooks.deepspeed_sequence import DeepSpeedSequenceHook
from dsprof.hooks.deepspeed_zero import DeepSpeedZeroHook
from dsprof.hooks.dtensor import DTensorHook
from dsprof.hooks.fsdp import FSDPHook
from dsprof.hooks.functional import FunctionalHook
from dsprof.hooks.interception import AutomaticHook, CompleteHook
from dsprof.hooks.memory import DeviceMemoryHook
from dsprof.hooks.native import (
    NativeAutomaticHook,
    NativeFunctionalHook,
    NativeHook,
    has_kernels,
)
from dsprof.hooks.pipelining import PipeliningHook
from dsprof.hooks.steps import TrainingLoopHook
from dsprof.hooks.unseen import UnseenHook
from dsprof.hooks.work import WorkHook
from dsprof.hooks.world import WorldHook
from dsprof.recorder import Recorder

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
    hooks = []
    for kind in hooks_for(config.interception, in_cpp=in_cpp):
        try:
            hooks.append(kind(recorder))
        except Exception as error:
            recorder.fail(kind.name, error)
    return hooks
