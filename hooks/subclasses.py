"""Patches methods in the subclasses of a class: those there are, and those to come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dsprof.hooks.base import Hook
from dsprof.patching import Patch, PatchSet

Wrap = Callable[[str, Callable[..., Any]], Callable[..., Any]]


class Subclasses:
    """Wraps `names` in every subclass of `base` that defines them in Python.

    A subclass to come is noticed by `__init_subclass__`, which Python calls when it is made. A
    failure makes `hook` remember it and leaves the class as it is.
    """

    def __init__(self, hook: Hook, base: type, names: Iterable[str], wrap: Wrap) -> None:
        self._hook = hook
        self._base = base
        self._names = frozenset(names)
        self._wrap = wrap
        self._patches = PatchSet()

    def watch(self) -> None:
        """Patch all subclasses from now on."""
        for kind in _descendants(self._base):
            self._patch(kind)
        self._patches.apply([Patch(self._base, "__init_subclass__", self._announce)])

    def release(self) -> None:
        """Put everything back."""
        self._patches.revert()

    def _announce(self, original: Callable[..., Any]) -> Any:
        base: Any = self._base
        patch, own = self._patch, vars(base).get("__init_subclass__")

        def announced(cls: Any, /, **kwargs: Any) -> None:
            if own is not None:
                own.__get__(None, cls)(**kwargs)
            else:
                super(base, cls).__init_subclass__(**kwargs)
            patch(cls)

        return classmethod(announced)

    def _patch(self, kind: type) -> None:
        try:
            names = sorted(self._names & vars(kind).keys())
            self._patches.apply([Patch(kind, name, self._wrapper_of(name)) for name in names])
        except Exception as error:
            self._hook.fail(error)

    def _wrapper_of(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return lambda original: self._wrap(name, original)


def _descendants(base: type) -> Iterator[type]:
    kind: type
    for kind in base.__subclasses__():
        yield kind
        yield from _descendants(kind)
