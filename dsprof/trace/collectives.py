"""Names of collectives: torch, NCCL and other tools spell each in several ways."""

from __future__ import annotations

_SPARSE = "all_reduce_sparse"
"""Ranks give as many values as they have, and take those of all."""

_FAMILIES = {
    "allreducesparse": _SPARSE,
    "allreduce": "all_reduce",
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "all2all": "all_to_all",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "monitoredbarrier": "barrier",
    "isend": "send",
    "send": "send",
    "irecv": "recv",
    "recv": "recv",
}

SYNCHRONISING = frozenset(
    {"all_reduce", _SPARSE, "reduce_scatter", "all_gather", "all_to_all", "barrier"}
)
"""No rank leaves one of these before every rank has entered it."""

ROOTED = frozenset({"broadcast", "gather", "reduce", "scatter"})
"""In these one rank sends to all others, or receives from them, and may be held for longer."""

OTHER_SIDE = {"send": "recv", "recv": "send"}
"""What the peer of a point-to-point call issues."""

POINT_TO_POINT = frozenset(OTHER_SIDE)
"""On gloo these do not call themselves complete before a wait."""

SHARDED = frozenset({"all_gather", "reduce_scatter", "all_to_all"})
"""NCCL states the size of the part of one rank in these, not of the total array."""

REDUCTIONS = frozenset({"all_reduce", _SPARSE, "reduce_scatter", "reduce"})


def family(op: str) -> str:
    """Return the collective that `op` is a spelling of, or `op` itself if it is none.

    `all_gather_into_tensor`, `_allgather_base_` and `all_gather_single` are all `all_gather`.
    """
    bare = op.replace("_", "").lower()
    for start, name in _FAMILIES.items():
        if bare.startswith(start):
            return name
    return op


def is_rooted(op: str) -> bool:
    """Say whether one rank sends to all or receives from all: others may leave it early."""
    return family(op) in ROOTED


_EVEN = (
    *("allreduce", "broadcast", "reduceoop"),
    *("allgatherinto", "allgatherbase", "allgathersingle"),
    *("reducescattertensor", "reducescatterbase", "reducescattersingle"),
)


def is_even(op: str) -> bool:
    """Say whether every rank must give and take as much as the others."""
    bare = op.replace("_", "").lower()
    return bare == "reduce" or (bare.startswith(_EVEN) and family(op) != _SPARSE)
