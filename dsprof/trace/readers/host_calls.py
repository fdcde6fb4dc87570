"""Kinds of calls of the host by their names (CUDA, ROCm, torch), and what surrounds them."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from dsprof.trace.columns import IntArray
from dsprof.trace.device_activity import (
    ALLOCATION,
    DATA_LOADER,
    LAUNCH,
    LOADING,
    SYNCHRONISATION,
    TRANSFER,
)

_RUNTIME = (
    (SYNCHRONISATION, r"(cuda|hip|cu)(Device|Stream|Event|Ctx|Thread|Context)Synchronize"),
    (TRANSFER, r"(cuda|hip|cu)Memcpy"),
    (
        ALLOCATION,
        r"(cuda|hip)(Ext)?(Malloc|Free|Host(Alloc|Malloc|Free|Register|Unregister))"
        r"|(cu|hip)Mem(Alloc|Free|Create|Release|Map|Unmap|SetAccess|Address|Host)",
    ),
    (
        LOADING,
        r"(cuda|hip|cu)Graph(Instantiate|ExecUpdate|ExecDestroy|Destroy|Upload)"
        r"|(cuda|hip|cu)Stream(Begin|End)Capture"
        r"|(cuda|hip|cu)(Module|Library|Link)(Load|Unload|Create|AddData|Complete)"
        r"|(cu|cuda|hip)FuncLoad|(nvrtc|hiprtc)Compile"
        r"|(cuda|hip)FuncGetAttributes|(cuda|hip|cu)(Init|DevicePrimaryCtxRetain|CtxCreate)"
        r"|(cuda|hip)(DeviceGetStreamPriorityRange|StreamCreate)",
    ),
    (LAUNCH, r"(cuda|hip|cu)\w*Launch|(cuda|hip|cu)Memset"),
)
_RANGES = (
    (
        LOADING,
        r".*\(dynamo_timed\)$|torch/_dynamo/convert_frame\.py\(\d+\): _compile"
        r"|.*torch/_inductor/(compile_fx\.py\(\d+\): (_?compile_fx|fx_codegen)|async_compile\.py)"
        r"|.*triton/compiler/compiler\.py\(\d+\): compile|.*torch/utils/cpp_extension\.py",
    ),
    (
        DATA_LOADER,
        r"enumerate\(DataLoader\)#|.*/data_?loader\.py\(\d+\): (__next__|_next_data|_get_data)"
        r"|.*dataloader(\.__next__|_next)$|(get|fetch|load|next)_?batch\b",
    ),
)
_VERSION = re.compile(r"(_v\d+|_ptsz|_ptds){1,3}$")
_IS_RUNTIME = re.compile(r"(cuda|hip|cu|nvrtc|hiprtc)[A-Z]")


def kind_of(name: str) -> int:
    """Return what a call of this name does, 0 if it is of no kind that is read."""
    table = _RUNTIME if _IS_RUNTIME.match(name) else _RANGES
    return next((kind for kind, pattern in table if re.match(pattern, name, re.I)), 0)


def bare(name: str) -> str:
    """Return the name of a runtime call without the version that Nsight Systems puts behind."""
    return _VERSION.sub("", name)


def is_of_capture(name: str) -> bool:
    """Say whether a call begins or ends the capture of a graph."""
    return "StreamBeginCapture" in name or "StreamEndCapture" in name


def ends_of_captures(calls: IntArray, names: Sequence[str]) -> IntArray:
    """Return the ends of calls; where a capture begins, that of the call which ends it.

    What is launched into a capture does not run. Calls have rows thread, start, end and name, a
    code into `names`.
    """
    threads, _, ends, codes = calls
    begins, closes = (
        np.array([f"Stream{what}Capture" in name for name in names], np.bool_)[codes]
        for what in ("Begin", "End")
    )
    found: IntArray = ends.copy()
    for thread in np.unique(threads[begins]):
        begun = np.flatnonzero(begins & (threads == thread))
        closing = np.sort(ends[closes & (threads == thread)])
        next_one = np.searchsorted(closing, ends[begun])
        is_closed = next_one < len(closing)
        found[begun[is_closed]] = closing[next_one[is_closed]]
    return found


def around(calls: IntArray, ranges: IntArray, *, outermost: bool) -> IntArray:
    """Return the name of the outermost or innermost range around each call, 0 where none is.

    Calls have rows thread, start, end; ranges the same and, last, their names.
    """
    found = np.zeros(calls.shape[1], np.int64)
    for thread in np.unique(calls[0]):
        mine = np.flatnonzero(calls[0] == thread)
        mine = mine[np.argsort(calls[1, mine], kind="stable")]
        its = ranges[1:, ranges[0] == thread]
        first, last = np.searchsorted(calls[1, mine], its[:2])
        some = np.flatnonzero(last > first)
        lengths = its[1, some] - its[0, some]
        # The last to be written stays.
        order = some[np.argsort(lengths if outermost else -lengths, kind="stable")]
        names = its[2]
        for i, begin, end in zip(order, first[order], last[order], strict=True):
            found[mine[begin:end]] = names[i]
    return found


def outer(spans: IntArray) -> IntArray:
    """Return the ranges that lie in no other; rows are starts and ends."""
    order = np.lexsort((-spans[1], spans[0]))
    starts, ends = spans[:, order]
    reach = np.maximum.accumulate(ends)
    is_outer = np.ones(len(starts), np.bool_)
    is_outer[1:] = ends[1:] > reach[:-1]
    return spans[:, order[is_outer]]
