"""Where training stands, by which clock, and on whose behalf a thread communicates.

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


class Context(msgspec.Struct, gc=False):
    """On whose behalf a thread communicates: set by hooks of meaning, read by the wire hook.

    Replaced as a whole when any part changes, shared by the records made meanwhile.
    """

    request: int = 0  # id of the call into a library above c10d (deepspeed.comm, DTensor...)
    requested: str = ""  # what that call asked for
    flush: int = 0  # id of the bucket flush
    fetch: int = 0  # id of the parameter fetch
    wire_ops: int = 0  # collectives that the request caused on the wire
    coalesced: int = 0  # number of the batch that a backend launches at once
    site: int = 0  # the call site of all that it communicates; 0: it has to be looked for
