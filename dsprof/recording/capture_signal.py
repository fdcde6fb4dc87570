"""A signal by which a user asks a rank to keep its next steps."""

from __future__ import annotations

import signal
from contextlib import suppress
from types import FrameType

NO_SIGNAL = "none"


class CaptureSignal:
    """Knows that a signal came; a handler of the user's is called as before."""

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

    def take(self) -> bool:
        """Say whether it has come since the last question."""
        has_come, self._has_come = self._has_come, False
        return has_come

    def close(self) -> None:
        """Put back what was there, unless another handler replaced this one."""
        if signal.getsignal(self._number) == self._handle:
            with suppress(ValueError):  # not the main thread: it stays, and does nothing
                signal.signal(self._number, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._has_come = True
        if callable(self._before):
            self._before(number, frame)
