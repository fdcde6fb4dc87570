"""Exceptions that come from outside while a hook runs: they are no failures of the hook."""

from __future__ import annotations

import inspect
import traceback
from types import FrameType


def raise_if_of_signal_handler(error: BaseException) -> None:
    """Raise `error` again if a signal handler raised it.

    It is recognised by what such a handler gets: the signal, and the frame that it interrupts.
    Python's own handler of Ctrl-C has no frame.

    Raises:
        BaseException: `error`.
    """
    if isinstance(error, KeyboardInterrupt):
        raise error
    for frame, _ in traceback.walk_tb(error.__traceback__):
        arguments = inspect.getargvalues(frame)
        given = [arguments.locals.get(name) for name in arguments.args]
        gathered = arguments.locals.get(arguments.varargs or "")
        if isinstance(gathered, tuple):
            given += gathered
        if any(isinstance(one, FrameType) and one is frame.f_back for one in given):
            raise error


def raise_if_of_other_thread(error: BaseException) -> None:
    """Raise `error` again if another thread raised it in this one, as restarts in process do.

    PyThreadState_SetAsyncExc takes a class, so such an exception has no arguments; it is no
    Exception, so that the code that it interrupts does not catch it.

    Raises:
        BaseException: `error`.
    """
    if not isinstance(error, Exception) and not error.args:
        raise error
