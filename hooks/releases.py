"""Which release of a library is installed, for names that came or went with one."""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, version


def release_of(library: str) -> str:
    """Return the release of a library, "" if that cannot be known.

    A package that is still being imported may not have its `__version__` yet.
    """
    known = getattr(sys.modules.get(library), "__version__", None)
    if known is not None:
        return str(known)
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def is_before(library: str, release: str) -> bool:
    """Tell whether the library is older than `release`; one that is not known is not."""
    here = _numbers(release_of(library))
    return bool(here) and here < _numbers(release)


def _numbers(release: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", release)
    return tuple(map(int, found[0].split("."))) if found else ()
