"""Plugins: parts of dsprof that other packages bring, found by entry points where they are needed.

Built-in parts are found by being in a folder (`dsprof.plugins.parts`). Nothing here raises for a
plugin: one that is broken is named in `problems()`, and the others go on.
docs/reference/plugins.md is the manual.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.abc import MetaPathFinder
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from dsprof.config import has_plugins
from dsprof.errors import message_of
from dsprof.findings.wording import shortened

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_LONGEST_REASON = 300

T = TypeVar("T")


_problems: dict[str, None] = {}


def problems() -> list[str]:
    """Return a sentence on each plugin that this process could not use."""
    return list(_problems)


def note(problem: str) -> None:
    """Remember that a plugin could not be used."""
    _problems[problem] = None


def load(
    points: Iterable[EntryPoint],
    accept: Callable[[Any, str], T],
    id_of: Callable[[T], str],
    taken: Collection[str],
) -> tuple[T, ...]:
    """Load plugins of the report, which does without torch.

    `accept` gets the instance and the name of its package, and raises if it is unfit. Ids in
    `taken`, those of built-in parts, are refused, and so is the second plugin of an id.
    """
    parts: dict[str, T] = {}
    for point in points:
        try:
            with _no_torch():
                if isinstance(found := point.load(), type):
                    raise TypeError("it is a class; name an instance in the entry point")
                part = accept(found, package_of(point))
            _check_free(id_of(part), taken, parts)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - code of others: a panic of Rust is no Exception
            note(
                f"Plugin {shortened(point.name)} of package {package_of(point)} could not be "
                f"loaded: {reason(error)}."
            )
        else:
            parts[id_of(part)] = part
    return tuple(parts.values())


def group(name: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of the group `dsprof.<name>`, by their names; nothing is loaded."""
    return _entry_points(name) if has_plugins(os.environ) else ()


def reason(error: BaseException) -> str:
    """Return type and message of an error that the code of others raised."""
    text = f"{type(error).__name__}: {message_of(error)}"
    return shortened(text, _LONGEST_REASON).rstrip(".")


def package_of(point: EntryPoint) -> str:
    """Return name and version of the package that brings a plugin."""
    try:
        assert point.dist is not None
        return shortened(f"{point.dist.name} {point.dist.version}")
    except Exception:  # noqa: BLE001 - damaged metadata
        return "unknown"


@cache
def _entry_points(name: str) -> tuple[EntryPoint, ...]:
    """Look through the metadata of all packages, once a process: that takes milliseconds."""
    from importlib.metadata import entry_points

    try:
        return tuple(sorted(entry_points(group=f"dsprof.{name}"), key=lambda point: point.name))
    except Exception as error:  # noqa: BLE001 - one damaged package must not cost the report
        note(f"Plugins could not be searched for: {reason(error)}.")
        return ()


def _check_free(name: str, taken: Collection[str], others: Collection[str]) -> None:
    if name in taken:
        raise ValueError(f"'{name}' is built in, and a plugin cannot replace it; rename it")
    if name in others:
        raise ValueError(f"another plugin is called '{name}', too; uninstall one of them")


class _NoTorch(MetaPathFinder):
    """Refuses to one thread what a report must do without."""

    def __init__(self) -> None:
        self.thread = get_ident()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raise for torch and deepspeed, and leave everything else to others.

        Raises:
            ImportError: it is one of them.
        """
        if name in ("torch", "deepspeed") and get_ident() == self.thread:
            raise ImportError(f"plugins of the report must not import {name}", name=name)


@contextmanager
def _no_torch() -> Iterator[None]:
    """Let a plugin that needs torch fail on every machine alike, and in no time."""
    finder = _NoTorch()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
