"""An inventory: what each hook would find in the installed libraries, without recording anything.

`python -m dsprof.hooks.inventory INTERCEPTION PLUGIN...` prints it as JSON on its last line, for
`dsprof doctor`.
"""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from collections.abc import Iterable

from dsprof.errors import message_of
from dsprof.hooks.base import Hook
from dsprof.hooks.patching import parents
from dsprof.hooks.plugin_hooks import plugin_hooks
from dsprof.hooks.registry import BUILT_IN, hooks_for
from dsprof.hooks.wire.native import has_kernels
from dsprof.recording.recorder.interrupts import raise_if_of_signal_handler
from dsprof.recording.recorder.recorder import Recorder


def inventory(interception: str, plugins: Iterable[str]) -> dict[str, list[str]]:
    """Return for each hook what it would not record and why, nothing if it finds all it needs.

    Built-in hooks of a library that is not installed are left out.
    """
    found: dict[str, list[str]] = {}
    why_not = ""
    try:
        in_cpp = has_kernels(interception)
    except Exception as error:
        in_cpp, why_not = False, str(error)
    for hook in hooks_for(interception, in_cpp=in_cpp):
        lacks = _lacks(hook(Recorder(bool)))
        if lacks is not None:
            found[hook.name] = lacks
    if in_cpp or why_not:
        found["native"] = [why_not] if why_not else []
    return {**found, **_of_plugins(plugins)}


def _of_plugins(names: Iterable[str]) -> dict[str, list[str]]:
    recorder = Recorder(bool)
    hooks = plugin_hooks(names, BUILT_IN, recorder)
    lacks = {hook.name: _lacks(hook) for hook in hooks if hook.modules()}
    absent = ["the library that it watches is not installed"]
    found = {name: absent if lost is None else lost for name, lost in lacks.items()}
    return {**found, **{name: [why] for name, why in recorder.failures.items()}}


def _lacks(hook: Hook) -> list[str] | None:
    """Return what a hook would not record; None without any library that it watches."""
    answers = [_lacks_in(hook, module) for module in hook.modules()]
    found = [answer for answer in answers if answer is not None]
    return list(dict.fromkeys(itertools.chain(*found))) if found else None


def _lacks_in(hook: Hook, module: str) -> list[str] | None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module.partition(".")[0]:
            return None
        if error.name not in [name for pair in parents(module) for name in pair]:
            return [f"{type(error).__name__}: {error}"]  # what the library itself needs
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    try:
        lost = hook.losses(module)
        hook.patches(module)
    except BaseException as error:  # code of plugins: a panic of Rust is no Exception
        raise_if_of_signal_handler(error)
        return [message_of(error)]
    return lost


if __name__ == "__main__":
    print(f"\n{json.dumps(inventory(sys.argv[1], sys.argv[2:]))}")
