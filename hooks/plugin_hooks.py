"""Hooks of other packages, of which only those are loaded that the configuration names."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any

from dsprof.config import has_plugins
from dsprof.hooks.base import Hook, Target
from dsprof.plugins import entry_points
from dsprof.recording.recorder.interrupts import raise_if_of_signal_handler
from dsprof.recording.recorder.recorder import Recorder
from dsprof.trace.schema import OF_PLUGIN


def plugin_hooks(names: Iterable[str], taken: Collection[str], recorder: Recorder) -> list[Hook]:
    """Return one of each named hook; the trace says of the others why they are off.

    Names in `taken`, those of built-in hooks, are refused.
    """
    made: list[Hook] = []
    for name in dict.fromkeys(names) if has_plugins(os.environ) else ():
        try:
            made.append(_made(name, taken, recorder))
        except BaseException as error:  # a panic of Rust is no Exception
            raise_if_of_signal_handler(error)
            recorder.fail(f"{OF_PLUGIN}{name}", RuntimeError(entry_points.reason(error)))
    return made


def _made(name: str, taken: Collection[str], recorder: Recorder) -> Hook:
    """Load a hook and make one.

    Raises:
        Exception: it cannot be, with the reason and the package.
    """
    if name in taken:
        raise ValueError("it is built in, and always on: take it out of the setting hooks")
    point = next((one for one in entry_points.group("hooks") if one.name == name), None)
    if point is None:
        raise LookupError("no installed package has a hook of this name")
    try:
        return _checked(point.load(), name, recorder)
    except BaseException as error:
        raise_if_of_signal_handler(error)
        package = entry_points.package_of(point)
        raise RuntimeError(f"package {package}: {entry_points.reason(error)}") from error


def _checked(kind: Any, name: str, recorder: Recorder) -> Hook:
    if not (isinstance(kind, type) and issubclass(kind, Hook)):
        raise TypeError("it is no subclass of dsprof.api.Hook")
    if kind.name != name:
        raise ValueError(f"its name is {kind.name!r}, that of the entry point {name!r}")
    if not all(isinstance(target, Target) for target in kind.targets):
        raise TypeError("each of its targets must be a Target")
    hook = kind(recorder)
    hook.name = f"{OF_PLUGIN}{name}"
    if not all(isinstance(module, str) for module in hook.modules()):
        raise TypeError("its modules must be names")
    return hook
