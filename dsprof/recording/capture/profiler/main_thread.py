"""Calls in the main thread, made for another thread between two instructions of Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

_KEPT: list[_PendingCall] = []
"""The interpreter may make a call up to its very end."""


class _PendingCall:
    """Makes the call when the interpreter asks for its truth.

    `PyObject_IsTrue` is a function of the interpreter with the signature of a pending call. What
    is raised meanwhile, as by Ctrl-C, is raised in the main thread; a callback of ctypes would
    print it and go on.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __bool__(self) -> bool:
        self._call()
        return False


def caller(call: Callable[[], None]) -> Callable[[], None]:
    """Return what has `call` made in the main thread soon; not while that is in C code.

    What `call` raises is raised in the program that the main thread runs.
    """
    python, pending = ctypes.pythonapi, _PendingCall(call)
    _KEPT.append(pending)

    def call_soon() -> None:
        python.Py_AddPendingCall(python.PyObject_IsTrue, ctypes.py_object(pending))

    return call_soon
