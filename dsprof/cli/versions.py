"""Versions of what is installed, without importing it: torch takes seconds."""

from __future__ import annotations

import re

_FIRST_WITH_PLUGINS = (2, 6)


def version_of(package: str) -> str | None:
    """Return the installed version of a package, None if it is not installed here."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def loads_plugins(torch: str | None) -> bool:
    """Say whether a torch of this version calls the entry points `torch.backends` at import.

    A torch that is not installed here, or whose version says nothing, counts as a new one.
    """
    numbers = re.match(r"(\d+)\.(\d+)", torch or "")
    return numbers is None or (int(numbers[1]), int(numbers[2])) >= _FIRST_WITH_PLUGINS
