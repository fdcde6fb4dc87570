"""Patch attributes and put the same objects back; act when a module gets imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]

_MISSING = object()


class Patch:
    """One attribute replaced by a wrapper of itself.

    `raw` is what `vars(owner)` had: for C++ classes that is an instancemethod, which
    `getattr` would turn into a function that no longer binds, so only `raw` is ever put back.
    """

    def __init__(self, owner: Any, name: str, wrap: Wrap) -> None:
        self.owner = owner
        self.name = name
        self.raw = vars(owner).get(name, _MISSING)
        self.wrapper = wrap(getattr(owner, name))

    def apply(self) -> None:
        """Put the wrapper in place."""
        setattr(self.owner, self.name, self.wrapper)

    def revert(self) -> bool:
        """Put the original back.

        Returns:
            False if someone has wrapped us meanwhile: their chain is unchanged, and our wrapper
            stays in it; it passes calls through once its recorder has stopped.
        """
        if vars(self.owner).get(self.name) is not self.wrapper:
            return False
        if self.raw is _MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.raw)
        return True


class PatchSet:
    """Patches that are in place together or not at all."""

    def __init__(self) -> None:
        self.patches: list[Patch] = []

    def apply(self, patches: Sequence[Patch]) -> None:
        """Apply all of `patches`, or none if one cannot be applied."""
        done: list[Patch] = []
        try:
            for patch in patches:
                patch.apply()
                done.append(patch)
        except Exception:
            for patch in reversed(done):
                patch.revert()
            raise
        self.patches.extend(done)

    def revert(self) -> list[Patch]:
        """Revert all; return those that stay in someone's chain."""
        left = [patch for patch in reversed(self.patches) if not patch.revert()]
        self.patches.clear()
        return left


class _Finder(importlib.abc.MetaPathFinder):
    """Calls back once a wanted module has been executed; the import itself is left as it is."""

    def __init__(self) -> None:
        self.wanted: dict[str, list[Callable[[], None]]] = {}
        self._busy = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.wanted or getattr(self._busy, "on", False):
            return None
        self._busy.on = True
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            return None
        finally:
            self._busy.on = False
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return None
        _call_after(spec.loader, lambda: self._imported(name))
        return spec

    def _imported(self, name: str) -> None:
        for callback in self.wanted.pop(name, []):
            callback()


def _call_after(loader: Any, callback: Callable[[], None]) -> None:
    """Run `callback` after this loader has executed its module; never fail the import."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        execute(module)
        callback()

    loader.exec_module = exec_module


_finder = _Finder()


def when_imported(name: str, callback: Callable[[], None]) -> None:
    """Call `callback` now if module `name` is imported, else right after it will have been.

    `callback` must not raise: it would fail the import of somebody else's module.
    """
    module = sys.modules.get(name)
    if module is not None and not _is_loading(module):
        callback()
        return
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.wanted.setdefault(name, []).append(callback)


def forget_imports() -> None:
    """Drop all callbacks that have not been called and take the finder away."""
    _finder.wanted.clear()
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


def _is_loading(module: ModuleType) -> bool:
    spec = getattr(module, "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def parents(module: str) -> list[tuple[str, str]]:
    """Return each package above `module`, and the module in it on the way there."""
    parts = module.split(".")
    levels = [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    return list(itertools.pairwise(levels))


def is_importable(module: str) -> bool:
    """Tell whether there is a module of this name; its package must be imported."""
    try:
        return module in sys.modules or importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
    except (ImportError, ValueError, AttributeError):  # a finder of somebody else's that gives up
        return True
