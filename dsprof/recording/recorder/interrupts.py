"""Exceptions of a user's signal handler while a hook runs: they are no failures of ours."""

from __future__ import annotations

import inspect
import traceback
from types import FrameType


def raise_if_of_signal_handler(error: BaseException) -> None:
    """Raise `error` again if a signal handler raised it.

    It is recognised by what such a handler gets: the signal, and the frame that it interrupts.

    Raises:
        BaseException: `error`.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        arguments = inspect.getargvalues(frame)
        given = [arguments.locals.get(name) for name in arguments.args]
        gathered = arguments.locals.get(arguments.varargs or "")
        if isinstance(gathered, tuple):
            given += gathered
        if any(isinstance(one, FrameType) and one is frame.f_back for one in given):
            raise error
