"""The columns of collectives; strings are codes into `words`.

Written by `python -m dsprof.trace.generate`: edit `dsprof.trace.schema`.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Codes = IntArray


@dataclasses.dataclass(slots=True)
class Columns:
    """One row per collective, in the order of the file."""

    words: list[str]
    op: Codes
    id: IntArray
    group: IntArray
    seq: IntArray
    nbytes: IntArray
    elements: IntArray
    issue_ns: IntArray
    tensors: IntArray
    dtype: Codes
    requested: Codes
    request: IntArray
    is_async: BoolArray
    reduce_op: Codes
    peer: IntArray
    site: IntArray
    step: IntArray
    micro_step: IntArray
    phase: Codes
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


_KINDS = {one.name: one.type for one in dataclasses.fields(Columns)[2:]}
WORDS = [name for name, kind in _KINDS.items() if kind == "Codes"]
NUMBERS = [name for name, kind in _KINDS.items() if kind == "IntArray"]
FLAGS = [name for name, kind in _KINDS.items() if kind == "BoolArray"]
