"""The hooks: each class of a folder here that derives from `Hook`. Importing this imports torch."""

from __future__ import annotations

from dsprof.config import Config
from dsprof.hooks.base import Hook
from dsprof.hooks.wire.collectives import WireHook
from dsprof.hooks.wire.functional import FunctionalHook
from dsprof.hooks.wire.interception import AutomaticHook, CompleteHook
from dsprof.hooks.wire.native import (
    NativeAutomaticHook,
    NativeFunctionalHook,
    NativeHook,
    has_kernels,
    watch_starvation,
)
from dsprof.hooks.wire.process_group import ProcessGroupHook
from dsprof.plugins.parts import classes_in, folders_in
from dsprof.recording.recorder.recorder import Recorder

WIRE_HOOKS: dict[str, type[Hook]] = {
    "auto": AutomaticHook,
    "dispatcher": CompleteHook,
    "native": CompleteHook,
    "process_group": ProcessGroupHook,
}
"""Which of them takes the wire is the setting `interception`."""

_IN_CPP: dict[type[Hook], type[Hook]] = {
    AutomaticHook: NativeAutomaticHook,
    CompleteHook: NativeHook,
    FunctionalHook: NativeFunctionalHook,
}
"""Substitutes for other hooks where kernels in C++ are used."""

HOOKS: tuple[type[Hook], ...] = tuple(
    sorted(
        (
            kind
            for folder in folders_in(__package__)
            for kind in classes_in(folder)
            if issubclass(kind, Hook)
            if kind.name != WireHook.name and kind not in _IN_CPP.values()
        ),
        key=lambda hook: (hook.order, hook.name),
    )
)
"""Those beside the wire's own, in the order in which they are installed."""

FALLBACKS: dict[type[Hook], type[Hook]] = {
    CompleteHook: ProcessGroupHook,
    NativeHook: ProcessGroupHook,
}
"""Hooks to install where the first cannot be: another tool may hold the dispatcher's slot."""

BUILT_IN = frozenset(hook.name for hook in (*HOOKS, *WIRE_HOOKS.values(), *_IN_CPP.values()))


def hooks_for(interception: str, *, in_cpp: bool) -> tuple[type[Hook], ...]:
    """Return which hooks there are, that of the wire first."""
    instead = _IN_CPP if in_cpp else {}
    return tuple(instead.get(hook, hook) for hook in (WIRE_HOOKS[interception], *HOOKS))


def create_hooks(config: Config, recorder: Recorder) -> list[Hook]:
    """Return one of each hook for this configuration; those that cannot be made are off."""
    try:
        in_cpp = has_kernels(config.interception)
        if in_cpp:
            recorder.in_flight.state.watch_starvation = watch_starvation
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

        hooks += plugin_hooks(config.hooks, BUILT_IN, recorder)
    return hooks
