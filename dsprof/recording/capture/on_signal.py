"""A signal by which a user asks a rank to keep its next steps."""

from __future__ import annotations

import signal
from contextlib import suppress
from types import FrameType

NO_SIGNAL = "none"


class CaptureSignal:
    """Knows that a signal came; a handler of the user's is called as before.

    A user may send it at any time, and its default action is to end the process. So it is handled
    before a recording begins, too, and ignored after its end.
    """

    def __init__(self, name: str) -> None:
        """Begin to look for it.

        Raises:
            ValueError: this is not the main thread.
            RuntimeError: C code handles the signal, and could not be called from here.
        """
        self.name = name
        self._number = signal.Signals[name]
        self._before = signal.getsignal(self._number)
        self._has_come = False
        if self._before is None:
            raise RuntimeError(f"{name} is handled by C code")
        signal.signal(self._number, self._handle)
        if not callable(self._before):
            signal.siginterrupt(self._number, False)  # calls in C go on as if it had not come

    @property
    def is_handled(self) -> bool:
        """Whether no other handler replaced this one."""
        return signal.getsignal(self._number) == self._handle

    def take(self) -> bool:
        """Say whether it has come since the last question."""
        has_come, self._has_come = self._has_come, False
        return has_come

    def close(self, *, is_exit: bool) -> None:
        """Put back what was there, or ignore the signal; leave a handler that replaced this one."""
        if not self.is_handled:
            return
        with suppress(ValueError):  # not the main thread: it stays, and does nothing
            if self._before != signal.SIG_DFL:
                signal.signal(self._number, self._before)
            elif is_exit:  # as Python ends, it takes out what is written in Python
                signal.signal(self._number, signal.SIG_IGN)
            else:  # programs that are started later would inherit SIG_IGN
                signal.signal(self._number, _ignore)
                signal.siginterrupt(self._number, False)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._has_come = True
        if callable(self._before):
            self._before(number, frame)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing."""
