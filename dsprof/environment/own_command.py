"""Parts of dsprof that run in a process of their own, as children of this interpreter."""

from __future__ import annotations

import sys

_PROGRAM = """\
import sys
sys.path = [place for place in sys.path if place]
from importlib import import_module
sys.exit(import_module(sys.argv.pop(1)).main())
"""
"""`python -m` would import whatever another user left in the current folder."""


def own_command(module: str, *arguments: str) -> list[str]:
    """Return the command line that calls `main` of a module of dsprof."""
    return [sys.executable, "-c", _PROGRAM, module, *arguments]
