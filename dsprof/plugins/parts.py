"""Built-in parts of dsprof (rules, readers, hooks...): found by being in a folder, never listed."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any


def modules_in(package: str) -> Iterator[ModuleType]:
    """Import the modules and packages directly in `package`, by their names.

    Works inside a zip file; a frozen program must include all modules of dsprof.
    """
    parent = importlib.import_module(package)
    for name in sorted(module.name for module in pkgutil.iter_modules(parent.__path__)):
        yield importlib.import_module(f"{package}.{name}")


def in_folder(package: str, attribute: str) -> Iterator[Any]:
    """Yield what the modules and packages directly in `package` call `attribute`."""
    for module in modules_in(package):
        if hasattr(module, attribute):
            yield getattr(module, attribute)


def classes_in(package: str) -> Iterator[type]:
    """Yield the classes that the modules directly in `package` define."""
    for module in modules_in(package):
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == module.__name__:
                yield value


def folders_in(package: str) -> list[str]:
    """Return the packages directly in `package`."""
    parent = importlib.import_module(package)
    inside = pkgutil.iter_modules(parent.__path__)
    return [f"{package}.{module.name}" for module in inside if module.ispkg]
