"""The c10d operations: what each is called, and which argument is S of nccl-tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

Args = Sequence[Any]


class WireOp(NamedTuple):
    """How to read the arguments of one c10d operation."""

    name: str  # the name that people use
    sized: Callable[[Args], Sequence[Any]]  # the tensors whose bytes are S
    per_rank: bool = False  # S is the group size times those bytes
    is_point_to_point: bool = False
    since: str = ""  # the torch that brought it


def _first(args: Args) -> Any:
    return args[0]


def _second(args: Args) -> Any:
    return args[1]


def _only_first(args: Args) -> Sequence[Any]:
    return (args[0],)


def _only_second(args: Args) -> Sequence[Any]:
    return (args[1],)


def _first_list(args: Args) -> Any:
    return args[0][0] if args[0] else ()


def _second_list(args: Args) -> Any:
    return args[1][0] if args[1] else ()


def _flat_first(args: Args) -> Sequence[Any]:
    return tuple(chain.from_iterable(args[0]))


def _nothing(args: Args) -> Sequence[Any]:
    return ()


WIRE_OPS: dict[str, WireOp] = {
    "allreduce_": WireOp("all_reduce", _first),
    "allreduce_coalesced_": WireOp("all_reduce_coalesced", _first),
    "broadcast_": WireOp("broadcast", _first),
    "reduce_": WireOp("reduce", _first),
    "allgather_": WireOp("all_gather", _first_list),
    "_allgather_base_": WireOp("all_gather_into_tensor", _only_first),
    "allgather_coalesced_": WireOp("all_gather_coalesced", _flat_first),
    "allgather_into_tensor_coalesced_": WireOp("all_gather_into_tensor_coalesced", _first),
    "gather_": WireOp("gather", _second, per_rank=True),
    "gather_into_tensor_": WireOp("gather_into_tensor", _only_second, per_rank=True, since="2.14"),
    "scatter_": WireOp("scatter", _first, per_rank=True),
    "reduce_scatter_": WireOp("reduce_scatter", _second_list),
    "_reduce_scatter_base_": WireOp("reduce_scatter_tensor", _only_second),
    "reduce_scatter_tensor_coalesced_": WireOp("reduce_scatter_tensor_coalesced", _second),
    "alltoall_": WireOp("all_to_all", _second),
    "alltoall_base_": WireOp("all_to_all_single", _only_second),
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
