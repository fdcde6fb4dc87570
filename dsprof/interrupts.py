"""What a signal handler of the user raises while a hook runs: his own, and no failure of ours."""

from __future__ import annotations

import traceback
from types import FrameType


def raise_if_of_signal_handler(error: BaseException) -> None:
    """Raise `error` again if a signal handler raised it.

    It is told by what such a handler gets: the signal, and the frame that it interrupts.

    Raises:
        BaseException: `error`.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        given = [frame.f_locals.get(name) for name in names]
        if any(isinstance(one, FrameType) and one is frame.f_back for one in given):
            raise error
