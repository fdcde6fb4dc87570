"""The two layers that see the wire, and what they tell each other."""

from __future__ import annotations

from collections.abc import Callable

from dsprof.hooks.base import nothing
from dsprof.recording.recorder import Recorder


class Layers:
    """Methods of ProcessGroup and kernels in the dispatcher: each collective is recorded by one.

    Each thread that communicates touches its own entries only, so there is no lock.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.announced: set[int] = set()  # threads in a method that records the collective itself
        self.noted_below: dict[int, int] = {}  # thread -> when a kernel last recorded for it
        self.on_cpp: Callable[[], None] = nothing  # told before C++ first communicates by itself
