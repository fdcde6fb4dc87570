"""Calls in the main thread, made for another thread between two instructions of Python."""

from __future__ import annotations

import ctypes
import threading
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
        self.wanted = threading.Lock()
        """Held from when it is asked for until it has been made."""

    def __bool__(self) -> bool:
        try:
            self._call()
        finally:
            self.wanted.release()
        return False


def caller(call: Callable[[], None]) -> Callable[[], None]:
    """Return what has `call` made in the main thread soon; not while that is in C code.

    What `call` raises is raised in the program that the main thread runs. Asking again before it
    has been made has no effect: while one call is pending and another is being made, Python 3.11
    cannot enter a function that a debugger or coverage.py traces, and tries without end.
    """
    python, pending = ctypes.pythonapi, _PendingCall(call)
    _KEPT.append(pending)

    def call_soon() -> None:
        if not pending.wanted.acquire(blocking=False):
            return
        if python.Py_AddPendingCall(python.PyObject_IsTrue, ctypes.py_object(pending)):
            pending.wanted.release()  # too many calls are pending

    return call_soon
