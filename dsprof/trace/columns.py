"""The columns of collectives; strings are codes into `words`.

Written by `python -m dsprof.trace.generate`: edit `dsprof.trace.schema`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

WORDS = (
    "dtype",
    "requested",
    "reduce_op",
    "phase",
)
NUMBERS = (
    "id",
    "group",
    "seq",
    "nbytes",
    "elements",
    "issue_ns",
    "tensors",
    "request",
    "peer",
    "site",
    "step",
    "micro_step",
    "engine",
    "flush",
    "fetch",
    "coalesced",
    "thread",
    "return_ns",
    "stream",
    "pending_ns",
    "done_ns",
    "wait_ns",
    "waited_ns",
    "blocked_ns",
    "waits",
)
FLAGS = (
    "is_async",
    "on_wire",
    "captured",
    "is_estimated",
)


@dataclass(slots=True)
class Columns:
    """One row per collective, in the order of the file."""

    words: list[str]
    op: IntArray
    id: IntArray
    group: IntArray
    seq: IntArray
    nbytes: IntArray
    elements: IntArray
    issue_ns: IntArray
    tensors: IntArray
    dtype: IntArray
    requested: IntArray
    request: IntArray
    is_async: BoolArray
    reduce_op: IntArray
    peer: IntArray
    site: IntArray
    step: IntArray
    micro_step: IntArray
    phase: IntArray
    engine: IntArray
    flush: IntArray
    fetch: IntArray
    coalesced: IntArray
    thread: IntArray
    return_ns: IntArray
    stream: IntArray
    pending_ns: IntArray
    done_ns: IntArray
    wait_ns: IntArray
    waited_ns: IntArray
    blocked_ns: IntArray
    waits: IntArray
    on_wire: BoolArray
    captured: BoolArray
    is_estimated: BoolArray
