"""Needs of a recording towards the Python that runs it."""

from __future__ import annotations

import sys

NO_GIL = "this Python runs without the GIL, which dsprof does not support; set PYTHON_GIL=1"


def has_gil() -> bool:
    """Tell whether only one thread runs Python at a time, which hooks rely on."""
    ask = getattr(sys, "_is_gil_enabled", None)  # since Python 3.13
    return ask is None or bool(ask())
