"""Calls in the main thread, made for another thread between two instructions of Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_KEPT: list[Any] = []
"""The interpreter may make a call up to its very end."""


def caller(call: Callable[[], None]) -> Callable[[], None]:
    """Return what has `call` made in the main thread soon; not while that is in C code.

    `call` must not raise.
    """

    def in_main_thread(_: int | None) -> int:
        call()
        return 0

    function = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(in_main_thread)
    _KEPT.append(function)
    return lambda: ctypes.pythonapi.Py_AddPendingCall(function, None) and None
