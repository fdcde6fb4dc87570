"""An event that threads of the recorder wait for."""

from __future__ import annotations

import threading
from contextlib import suppress


class Latch:
    """Is set once. A wait runs one function of C.

    A wait for a `threading.Event` runs seven functions of Python. Each time that a thread of the
    recorder wakes, training has evicted their code from the caches.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._held = threading.Lock()
        self._held.acquire()

    def set(self) -> None:
        """Let all waits end, also those to come."""
        self.is_set = True
        with suppress(RuntimeError):  # it was set before
            self._held.release()

    def nudge(self) -> None:
        """Let one wait end early, or the next one at once."""
        with suppress(RuntimeError):  # it is set, or was nudged
            self._held.release()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is set, at most so long, which is more than 0; say whether it is."""
        if self._held.acquire(timeout=timeout_s) and self.is_set:
            self.set()  # for others that wait
        return self.is_set
