"""Counts what torch communicates by torch's own means; shares nothing with dsprof."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ExecutionTraceObserver

from tests.dist.leaving import wait_for_threads

Counts = dict[str, list[int]]
"""Operation -> [calls, bytes]; bytes as nccl-tests size them: of the whole array."""

USUAL_NAMES = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce_coalesced",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather_into_tensor",
    "allgather_coalesced_": "all_gather_coalesced",
    "allgather_into_tensor_coalesced_": "all_gather_into_tensor_coalesced",
    "gather_": "gather",
    "scatter_": "scatter",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor_coalesced",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
    "barrier": "barrier",
    "monitored_barrier_": "monitored_barrier",
    "send": "send",
    "recv_": "recv",
    "recv_any_source_": "recv",
}
"""Operations of c10d as people call them."""

# Which argument of an operation of c10d holds the whole array; else the first.
_SIZED_BY = {
    "_reduce_scatter_base_": 1,
    "alltoall_": 1,
    "alltoall_base_": 1,
    "gather_": 1,
    "reduce_scatter_": 1,
    "reduce_scatter_tensor_coalesced_": 1,
}
_ONE_RANK_OF_ALL = ("gather_", "scatter_")  # the argument is one rank's part
_EMPTY = ("barrier", "monitored_barrier_")


@contextmanager
def observed(scratch: Path, group_size: int) -> Iterator[Counts]:
    """Fill a dictionary with the c10d operations of the block; `scratch` is written and removed."""
    counts: Counts = {}
    observer = ExecutionTraceObserver().register_callback(str(scratch))
    observer.start()
    yield counts
    wait_for_threads()  # or the observer may crash the process as it stops
    observer.stop()
    observer.unregister_callback()
    total: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for node in json.loads(scratch.read_text())["nodes"]:
        if node["name"].startswith("c10d::"):
            op = node["name"].removeprefix("c10d::")
            total[USUAL_NAMES[op]][0] += 1
            total[USUAL_NAMES[op]][1] += _size(op, node["inputs"]["values"], group_size)
    scratch.unlink()
    counts.update(total)


def _size(op: str, arguments: list[Any], group_size: int) -> int:
    if op in _EMPTY:
        return 0
    size = nbytes(arguments[_SIZED_BY.get(op, 0)])
    return size * group_size if op in _ONE_RANK_OF_ALL else size


def nbytes(value: list[Any]) -> int:
    """Bytes of a tensor, [id, storage, offset, elements, item bytes, device], or a list of them."""
    if not value or isinstance(value[0], list):
        return sum(map(nbytes, value))
    return int(value[3] * value[4])


@contextmanager
def profiled_gloo(group_size: int) -> Iterator[Counts]:
    """Fill a dictionary with what gloo itself carried out, `gloo:*`, on tensors of float32."""
    counts: Counts = {}
    with torch.profiler.profile(record_shapes=True) as profiler:
        yield counts
    for event in profiler.events() or ():
        if event.name.startswith("gloo:"):
            op = event.name.removeprefix("gloo:")
            whole = group_size if op == "all_gather" else 1  # gloo names one rank's part
            entry = counts.setdefault(op, [0, 0])
            entry[0] += 1
            entry[1] += sum(4 * whole * torch.Size(s).numel() for s in event.input_shapes if s)
