"""Patches methods in the subclasses of a class: those there are, and those to come."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

from dsprof.hooks.base import Hook
from dsprof.hooks.patching import Patch, PatchSet

Wrap = Callable[[str, Callable[..., Any]], Callable[..., Any]]


class Subclasses:
    """Applies `patches_of` to every subclass of `base`.

    A subclass to come is noticed by `__init_subclass__`, which Python calls when it is made. A
    failure makes `hook` remember it and leaves the class as it is. Classes in the modules
    `patched_elsewhere` are left unpatched.
    """

    def __init__(
        self,
        hook: Hook,
        base: type,
        patches_of: Callable[[type], list[Patch]],
        patched_elsewhere: Container[str] = (),
    ) -> None:
        self._hook = hook
        self._patched_elsewhere = patched_elsewhere
        self._seen: set[type] = set()
        self._base = base
        self._patches_of = patches_of
        self._patches = PatchSet()

    def watch(self) -> None:
        """Patch all subclasses from now on."""
        for kind in descendants(self._base):
            self.include(kind)
        self._patches.apply([Patch(self._base, "__init_subclass__", self._announce)])

    def include(self, kind: type) -> None:
        """Patch `kind`, once."""
        if kind in self._seen or kind.__module__ in self._patched_elsewhere:
            return
        self._seen.add(kind)
        try:
            self._patches.apply(self._patches_of(kind))
        except Exception as error:
            self._hook.fail(error)

    def release(self) -> None:
        """Put everything back."""
        self._patches.revert()
        self._seen.clear()

    def _announce(self, original: Callable[..., Any]) -> Any:
        base: Any = self._base
        include, own = self.include, vars(base).get("__init_subclass__")

        def announced(cls: Any, /, **kwargs: Any) -> None:
            if own is not None:
                own.__get__(None, cls)(**kwargs)
            else:
                super(base, cls).__init_subclass__(**kwargs)
            include(cls)

        return classmethod(announced)


def own_patches(kind: type, names: Iterable[str], wrap: Wrap) -> list[Patch]:
    """Return patches for those of `names` that `kind` itself defines."""
    own = sorted(vars(kind).keys() & set(names))
    return [Patch(kind, name, functools.partial(wrap, name)) for name in own]


def descendants(base: type) -> Iterator[type]:
    """Yield every class below `base`."""
    kind: type
    for kind in base.__subclasses__():
        yield kind
        yield from descendants(kind)
