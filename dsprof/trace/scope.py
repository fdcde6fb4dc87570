"""Where training stands, and by which clock.

What is recorded of it is declared in `dsprof.trace.schema`.
"""

from __future__ import annotations

import time

import msgspec

clock = time.perf_counter_ns


class Scope(msgspec.Struct, gc=False, frozen=True):
    """Where training stands: replaced as a whole when any part changes, shared by records."""

    step: int
    micro_step: int
    phase: str  # "forward", "backward", "step", "" outside all of them
    engine: int = -1  # number of the DeepSpeed engine whose phase it is
    site: int = 0  # from where the user called what the phase is of, 0 when unknown


OUTSIDE = Scope(step=-1, micro_step=0, phase="")
"""Before the first phase."""
