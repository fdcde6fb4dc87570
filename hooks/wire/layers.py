"""The two layers that see the wire, and what they share."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dsprof.hooks.base import nothing
from dsprof.recording.recorder.recorder import Recorder

KEY = "BackendSelect"

NATIVE = "dsprof/hooks/wire/kernels.cpp"
"""Names of our kernels in C++; they stay, and pass everything on."""


class Layers:
    """Methods of ProcessGroup and kernels in the dispatcher: each collective is recorded by one.

    Each thread that communicates touches its own entries only, so there is no lock.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.announced: set[int] = set()  # threads in a method that records the collective itself
        self.noted_below: dict[int, int] = {}  # thread -> when a kernel last recorded for it
        self.on_cpp: Callable[[], None] = nothing  # told before C++ first communicates by itself


def check_slot(operation: str, carries: str) -> None:
    """See whether a kernel can be put below an operation, such as `c10d::allreduce_`.

    `carries` is what is not recorded without it, in the plural.

    Raises:
        RuntimeError: another tool has one there.
    """
    if torch._C._dispatch_has_kernel_for_dispatch_key(operation, KEY):
        kernels = torch._C._dispatch_dump(operation).splitlines()  # the one in use comes first
        if NATIVE not in next((line for line in kernels if line.startswith(KEY)), ""):
            why = f"another tool holds the {KEY} kernel of {operation}"
            raise RuntimeError(f"{carries} are not recorded: {why}")
