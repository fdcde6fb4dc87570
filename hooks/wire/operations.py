"""The c10d operations: what each is called, and which argument is S of nccl-tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

Args = Sequence[Any]


class WireOp(NamedTuple):
    """How to read the arguments of one c10d operation."""

    name: str  # the name that people use
    sized: Callable[[Args], Sequence[Any]]  # the tensors whose bytes are S
    per_rank: bool = False  # S is the group size times those bytes
    is_point_to_point: bool = False
    since: str = ""  # the torch that brought it


_first, _second = itemgetter(0), itemgetter(1)


def _only(at: int) -> Callable[[Args], Sequence[Any]]:
    return lambda args: (args[at],)


def _list_at(at: int) -> Callable[[Args], Sequence[Any]]:
    return lambda args: args[at][0] if args[at] else ()


def _nothing(args: Args) -> Sequence[Any]:
    return ()


WIRE_OPS: dict[str, WireOp] = {
    "allreduce_": WireOp("all_reduce", _first),
    "allreduce_coalesced_": WireOp("all_reduce_coalesced", _first),
    "broadcast_": WireOp("broadcast", _first),
    "reduce_": WireOp("reduce", _first),
    "allgather_": WireOp("all_gather", _list_at(0)),
    "_allgather_base_": WireOp("all_gather_into_tensor", _only(0)),
    "allgather_coalesced_": WireOp(
        "all_gather_coalesced", lambda args: (*chain.from_iterable(args[0]),)
    ),
    "allgather_into_tensor_coalesced_": WireOp("all_gather_into_tensor_coalesced", _first),
    "gather_": WireOp("gather", _second, per_rank=True),
    "gather_into_tensor_": WireOp("gather_into_tensor", _only(1), per_rank=True, since="2.14"),
    "scatter_": WireOp("scatter", _first, per_rank=True),
    "reduce_scatter_": WireOp("reduce_scatter", _list_at(1)),
    "_reduce_scatter_base_": WireOp("reduce_scatter_tensor", _only(1)),
    "reduce_scatter_tensor_coalesced_": WireOp("reduce_scatter_tensor_coalesced", _second),
    "alltoall_": WireOp("all_to_all", _second),
    "alltoall_base_": WireOp("all_to_all_single", _only(1)),
    "barrier": WireOp("barrier", _nothing),
    "monitored_barrier_": WireOp("monitored_barrier", _nothing),
    "send": WireOp("send", _first, is_point_to_point=True),
    "recv_": WireOp("recv", _first, is_point_to_point=True),
    "recv_any_source_": WireOp("recv", _first, is_point_to_point=True),
}

BLOCKING = "monitored_barrier"
"""Returns no Work, but when all ranks have come; gloo does it, in a group of any backend."""

METHODS: dict[str, str] = {
    "allreduce": "allreduce_",
    "allreduce_coalesced": "allreduce_coalesced_",
    "broadcast": "broadcast_",
    "reduce": "reduce_",
    "allgather": "allgather_",
    "_allgather_base": "_allgather_base_",
    "all_gather_single": "_allgather_base_",
    "allgather_coalesced": "allgather_coalesced_",
    "allgather_into_tensor_coalesced": "allgather_into_tensor_coalesced_",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced_",
    "gather": "gather_",
    "gather_into_tensor": "gather_into_tensor_",
    "gather_single": "gather_into_tensor_",
    "scatter": "scatter_",
    "reduce_scatter": "reduce_scatter_",
    "_reduce_scatter_base": "_reduce_scatter_base_",
    "reduce_scatter_single": "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced_",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced_",
    "alltoall": "alltoall_",
    "alltoall_base": "alltoall_base_",
    "all_to_all_single": "alltoall_base_",
    "barrier": "barrier",
    "monitored_barrier": "monitored_barrier_",
    "send": "send",
    "recv": "recv_",
    "recv_anysource": "recv_any_source_",
}
"""Methods of ProcessGroup, and the operation that each one issues."""
